/* The work list of attention over the paged cache, and what both versions of an item's attention share. */

/* The most queries that read their keys together; keys are read KEYS at a time. What AMX multiplies must be in the
 * first cache: with 64 keys, it takes a third more time. */
#if defined AMX && defined PAIRS
enum { KEYS = 32 };
#else
enum { KEYS = 64 };
#endif
enum { MOST_QUERIES = LANES == 16 ? 48 : 96, MOST_VECTORS = MOST_QUERIES / LANES };
const int most_queries = MOST_QUERIES;

/* A layer's part of the cache and of the model: its pool is [2K, slots, D], the heads of keys first. */
struct kv_layer {
    element *pool;
    int64_t slots, block_size, kv_heads, group, dim;
    float scale;
};

/* A work item: it lets tokens members[m] see keys seen[m].first .. seen[m].end - 1 of its blocks, for m from
 * first_member on; `keys` is the largest end. Its results go to places from `place` on, one for each token. If `steady`,
 * a token's results are bit for bit those that it has with any other members. */
struct item {
    int64_t first_member, width, first_block, keys, place, steady;
};

struct seen {
    int64_t first, end;
};

/* The list, and the results of its items for their tokens: sums of weighted values [places, Q, D], sums of weights, and
 * the scores that were subtracted before the exponential, [places, Q] each. A token's results are at
 * places[first_place[t]] .. places[first_place[t + 1] - 1]. */
struct work {
    int64_t count;
    const struct item *items;
    const int64_t *members;
    const struct seen *seen;
    const int64_t *blocks, *first_place, *places;
    float *values, *weights, *tops;
};

static const float MUCH = 8; /* a query's weights may grow to e^8, or 2^8 with pairs, before they are scaled down */
static const float NEVER = -1e30f; /* the score of a key that a row does not see */

/* Return an item's m-th query of a key head, [D]. q [T, ...] has a token stride; query heads come first in a token. */
INLINE const element *query_of(const struct kv_layer *layer, const struct work *work, const struct item *item,
                               const element *q, int64_t q_stride, int64_t head, int64_t m) {
    const int64_t group = layer->group, token = work->members[item->first_member + m / group];
    return q + token * q_stride + (head * group + m % group) * layer->dim;
}

/* Return the range of keys that all of an item's tokens see. */
static struct seen seen_by_all(const struct work *work, const struct item *item) {
    struct seen common = {0, item->keys};
    for (int64_t member = item->first_member; member < item->first_member + item->width; member++) {
        if (work->seen[member].first > common.first) common.first = work->seen[member].first;
        if (work->seen[member].end < common.end) common.end = work->seen[member].end;
    }
    return common;
}

/* Find `count` of an item's keys and values of a head, from its key `begin` on, and prefetch them. They arrive while
 * scores are computed; those of short items come from memory, one after the other. */
static void find(const struct kv_layer *layer, const struct work *work, const struct item *item, int64_t head,
                 int64_t begin, int64_t count, const element **k, const element **v) {
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

/* In scores [count, stride], set those of keys `from` .. `to` - 1 to NEVER, for `queries` queries from m on. */
INLINE void hide_keys(int64_t from, int64_t to, int64_t m, int64_t queries, int64_t stride, float *scores) {
    for (int64_t key = from; key < to; key++)
        for (int64_t i = m; i < m + queries; i++) scores[key * stride + i] = NEVER;
}

/* In scores [count, stride], set those of keys that a token does not see to NEVER. */
static void hide(const struct work *work, const struct item *item, int64_t group, int64_t begin, int64_t count,
                 int64_t stride, float *scores) {
    for (int64_t member = 0; member < item->width; member++) {
        const struct seen mine = work->seen[item->first_member + member];
        const int64_t first = mine.first - begin, end = mine.end - begin;
        hide_keys(0, first < count ? first : count, member * group, group, stride, scores);
        hide_keys(end > 0 ? end : 0, count, member * group, group, stride, scores);
    }
}

/* Return what to subtract from the scores of a vector of queries: for those that have grown by more than MUCH, or are no
 * numbers, `now`; for the others `top`, as before. Each lane decides for itself, so that no query's rounding depends on
 * those beside it. */
INLINE vec grown_only(vec top, vec now) {
    ints little = now - top <= MUCH;
    return (vec)(((ints)top & little) | ((ints)now & ~little));
}

/* Scale down the sums of weighted values of `queries` queries, [queries, D], by `less`. */
INLINE void lessen(float *out, vec less, int queries, int64_t dim) {
    for (int m = 0; m < queries; m++)
        if (less[m] != 1.0f)
            for (int64_t i = 0; i < dim; i += LANES)
                store_floats(out + m * dim + i, load_floats(out + m * dim + i) * less[m]);
}

/* Write an item's result for its m-th query. */
static void give(const struct kv_layer *layer, const struct work *work, const struct item *item, int64_t head,
                 int64_t m, const float *values, float weight, float top) {
    const int64_t group = layer->group, dim = layer->dim;
    const int64_t place = ((item->place + m / group) * layer->kv_heads + head) * group + m % group;
    memcpy(work->values + place * dim, values, dim * sizeof *values);
    work->weights[place] = weight;
    work->tops[place] = top;
}
