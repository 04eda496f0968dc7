/* Attention over the paged cache, by a work list. */

/* So many queries read their keys together, KEYS at a time. */
enum { MOST_QUERIES = LANES == 16 ? 48 : 96, MOST_VECTORS = MOST_QUERIES / LANES, KEYS = 64 };
const int most_queries = MOST_QUERIES;

/* A layer's part of the cache and of the model: its pool is [2K, slots, D], keys' heads first. */
struct layer {
    element *pool;
    int64_t slots, block_size, kv_heads, group, dim;
    float scale;
};

/* The work list: item i lets tokens members[m] see keys seen[m].first .. seen[m].end - 1 of its blocks, for m from
 * first_member on; `keys` is the largest end. Its results go to places from `place` on, one for each token. */
struct item {
    int64_t first_member, width, first_block, keys, place;
};

struct seen {
    int64_t first, end;
};

/* The list, and what its items give for their tokens: sums of values by their weights [places, Q, D], the weights'
 * sums and the scores that were taken off before the exponential, [places, Q] each. A token's own are those at
 * places[first_place[t]] .. places[first_place[t + 1] - 1]. */
struct work {
    int64_t count;
    const struct item *items;
    const int64_t *members;
    const struct seen *seen;
    const int64_t *blocks, *first_place, *places;
    float *values, *weights, *tops;
};

static const float MUCH = 8; /* e^8: so much larger than 1 weights may become before all is made less */
static const float NEVER = -1e30f; /* the score of a key that a row does not see */

/* An item's m-th query, of a key head [D]: q [T, ...] of a token's stride, which begins with its queries' heads. */
INLINE const element *query_of(const struct layer *layer, const struct work *work, const struct item *item,
                               const element *q, int64_t q_stride, int64_t head, int64_t m) {
    const int64_t group = layer->group, token = work->members[item->first_member + m / group];
    return q + token * q_stride + (head * group + m % group) * layer->dim;
}

/* The keys that all of an item's tokens see. */
static struct seen seen_by_all(const struct work *work, const struct item *item) {
    struct seen common = {0, item->keys};
    for (int64_t member = item->first_member; member < item->first_member + item->width; member++) {
        if (work->seen[member].first > common.first) common.first = work->seen[member].first;
        if (work->seen[member].end < common.end) common.end = work->seen[member].end;
    }
    return common;
}

/* Where `count` of an item's keys and values of a head lie, from its key `begin` on. They are on their way while scores
 * are computed; those of short items come from memory, and one by one. */
static void find(const struct layer *layer, const struct work *work, const struct item *item, int64_t head, int64_t begin,
                 int64_t count, const element **k, const element **v) {
    const int64_t dim = layer->dim, size = layer->block_size;
    const element *keys = layer->pool + head * layer->slots * dim;
    const element *values = layer->pool + (layer->kv_heads + head) * layer->slots * dim;
    int64_t block = item->first_block + begin / size, inside = begin % size;
    for (int64_t key = 0; key < count; key++) {
        int64_t slot = work->blocks[block] * size + inside;
        k[key] = keys + slot * dim;
        v[key] = values + slot * dim;
        for (int64_t i = 0; i < dim; i += 64 / (int64_t)sizeof *values) {
            __builtin_prefetch(k[key] + i);
            __builtin_prefetch(v[key] + i);
        }
        if (++inside == size) {
            inside = 0;
            block++;
        }
    }
}

/* Of scores [count, stride] those of keys that a token does not see are NEVER. */
static void hide(const struct work *work, const struct item *item, int64_t group, int64_t begin, int64_t count,
                 int64_t stride, float *scores) {
    for (int64_t m = 0; m < item->width * group; m++) {
        struct seen mine = work->seen[item->first_member + m / group];
        for (int64_t key = 0; key < count; key++)
            if (begin + key < mine.first || begin + key >= mine.end) scores[key * stride + m] = NEVER;
    }
}

/* What was summed up of `queries` values [queries, D] becomes less. */
INLINE void lessen(float *out, vec less, int queries, int64_t dim) {
    for (int m = 0; m < queries; m++)
        if (less[m] != 1.0f)
            for (int64_t i = 0; i < dim; i += LANES)
                store_floats(out + m * dim + i, load_floats(out + m * dim + i) * less[m]);
}

/* What an item gives for its m-th query. */
static void give(const struct layer *layer, const struct work *work, const struct item *item, int64_t head, int64_t m,
                 const float *values, float weight, float top) {
    const int64_t group = layer->group, dim = layer->dim;
    const int64_t place = ((item->place + m / group) * layer->kv_heads + head) * group + m % group;
    memcpy(work->values + place * dim, values, dim * sizeof *values);
    work->weights[place] = weight;
    work->tops[place] = top;
}

/* attend(layer, work, item, q, q_stride, head): one item and key head.
 *
 * Keys come KEYS at a time; the largest score so far is taken off all, and what was summed up under a smaller one is
 * made less (the online softmax of Milakov and Gimelshein, 2018, as in FlashAttention), but only where it has grown much
 * (as in FlashAttention-4). */
#ifdef PAIRS
#include "attend_pairs.h"
#else
#include "attend_floats.h"
#endif

struct attended {
    const struct layer *layer;
    const struct work *work;
    const element *q;
    int64_t q_stride;
    element *out;
};

static void attend_some(const void *what, int64_t begin, int64_t end) {
    const struct attended *of = what;
    const int64_t kv_heads = of->layer->kv_heads;
    for (int64_t task = begin; task < end; task++)
        attend(of->layer, of->work, of->work->items + task / kv_heads, of->q, of->q_stride, task % kv_heads);
}

/* What the items have found for each token, as one. */
static void join_some(const void *what, int64_t begin, int64_t end) {
    const struct attended *of = what;
    const struct work *work = of->work;
    const int64_t dim = of->layer->dim, heads = of->layer->kv_heads * of->layer->group;
    for (int64_t token = begin; token < end; token++)
        for (int64_t head = 0; head < heads; head++) {
            const int64_t *mine = work->places + work->first_place[token];
            const int64_t several = work->first_place[token + 1] - work->first_place[token];
            float top = NEVER, total = 0, shares[several];
            for (int64_t p = 0; p < several; p++) top = fmaxf(top, work->tops[mine[p] * heads + head]);
            for (int64_t p = 0; p < several; p++) {
                shares[p] = exponential(all(work->tops[mine[p] * heads + head] - top))[0];
                total += shares[p] * work->weights[mine[p] * heads + head];
            }
            for (int64_t i = 0; i < dim; i += LANES) {
                vec joined = {0};
                for (int64_t p = 0; p < several; p++)
                    joined += shares[p] * load_floats(work->values + (mine[p] * heads + head) * dim + i);
                store(of->out + (token * heads + head) * dim + i, joined / total);
            }
        }
}

/* Attention of all tokens over the paged cache: q and out [T, Q, D], q of a token's stride. */
void attention(const struct layer *layer, const struct work *work, const element *q, int64_t q_stride, element *out,
               int64_t tokens) {
    const struct attended of = {layer, work, q, q_stride, out};
    share(attend_some, &of, work->count * layer->kv_heads, 1, 1); /* one may take much longer than another */
    share_rows(join_some, &of, tokens, layer->kv_heads * layer->group * layer->dim, WORTH_THREADS / 8);
}
