/* Attention of an item if the processor multiplies bfloat16. Keys are used as they are stored, in pairs of
 * neighbours in a head; values in pairs of two keys' values, as are their weights, which are rounded to bfloat16
 * like values (as in FlashAttention). A query's weights are summed as they are rounded, so that its output lies
 * between the values that it sees. Scores are to base 2, and an integer is subtracted from them: it changes only the
 * exponent of a weight, so that rounding does not depend on the other rows. The rest is as in attend_floats.h. */

/* Tiles of sums that registers hold: keys by vectors of queries, and queries by vectors of values. */
enum { SCORED_KEYS = 8, SCORED = 3, WEIGHED_ROWS = 6, WEIGHED = 4 };

/* Score `count` consecutive keys against `vectors` vectors of queries, which are pairs [D / 2, stride]; the scores are
 * multiplied by `scale`. `tops` becomes the largest scores. */
INLINE void score_tile(const int32_t *q, const element *k, const int count, const int64_t dim, const int vectors,
                       const int64_t stride, float scale, float *scores, vec *tops) {
    vec dots[SCORED_KEYS][SCORED];
    EACH_ROW
    for (int j = 0; j < count; j++)
        for (int g = 0; g < vectors; g++) dots[j][g] = all(0);
    for (int64_t i = 0; i < dim / 2; i++) {
        ints at[SCORED];
        for (int g = 0; g < vectors; g++) at[g] = load_ints(q + i * stride + g * LANES);
        EACH_ROW
        for (int j = 0; j < count; j++) {
            ints pair = pair_at(k + j * dim + 2 * i);
            for (int g = 0; g < vectors; g++) dots[j][g] = add_pairs(dots[j][g], at[g], pair);
        }
    }
    EACH_ROW
    for (int j = 0; j < count; j++)
        for (int g = 0; g < vectors; g++) {
            vec scaled = dots[j][g] * scale;
            tops[g] = larger(tops[g], scaled);
            store_floats(scores + j * stride + g * LANES, scaled);
        }
}

/* Score any number of keys. */
INLINE void score(const int32_t *q, const element *const *k, int64_t keys, const int64_t dim, const int vectors,
                  const int64_t stride, float scale, float *scores, vec *tops) {
    for (int64_t key = 0; key < keys;) {
        int count = 1; /* consecutive keys, in one block or in blocks that happen to follow each other */
        while (count < SCORED_KEYS && key + count < keys && k[key + count] == k[key] + count * dim) count++;
        if (count == SCORED_KEYS) {
            score_tile(q, k[key], SCORED_KEYS, dim, vectors, stride, scale, scores + key * stride, tops);
        } else {
            score_tile(q, k[key], 1, dim, vectors, stride, scale, scores + key * stride, tops);
            count = 1;
        }
        key += count;
    }
}

/* Turn a vector of scores into weights. */
INLINE vec weights_of_scores(vec scores, vec top, const int masked) {
    vec weights = power_of_two(scores - top);
    if (masked) weights = (vec)((ints)weights & ~(scores <= NEVER)); /* as long as no key was seen, top is NEVER too */
    return weights;
}

/* Turn the scores of `pairs` pairs of keys, [2 pairs, stride], for a vector of queries, into pairs of weights
 * [pairs, stride], in place; return the sums of the weights. */
INLINE vec weights_in_place(float *scores, int64_t stride, int64_t pairs, vec top, const int masked) {
    const ints ones = (ints)((words){0} + 0x3f803f80);
    vec sums = all(0);
    for (int64_t pair = 0; pair < pairs; pair++) {
        vec first = weights_of_scores(load_floats(scores + 2 * pair * stride), top, masked);
        vec second = weights_of_scores(load_floats(scores + (2 * pair + 1) * stride), top, masked);
        ints both = rounded_pairs(first, second);
        *(ints_at *)(scores + pair * stride) = both;
        sums = add_pairs(sums, both, ones);
    }
    return sums;
}

/* Add weights [pairs, stride] times values [pairs, D] to out [rows, D], in D from `at` on: `rows` queries and `count`
 * vectors stay in registers. */
INLINE void weigh(const float *weights, int64_t stride, const int32_t *values, int64_t at, int64_t pairs,
                  const int64_t dim, float *out, const int rows, const int count) {
    vec sums[WEIGHED_ROWS][WEIGHED];
    EACH_ROW
    for (int m = 0; m < rows; m++)
        for (int c = 0; c < count; c++) sums[m][c] = load_floats(out + m * dim + at + c * LANES);
    for (int64_t pair = 0; pair < pairs; pair++) {
        ints value[WEIGHED];
        for (int c = 0; c < count; c++) value[c] = load_ints(values + pair * dim + at + c * LANES);
        EACH_ROW
        for (int m = 0; m < rows; m++) {
            ints weight = pair_at(weights + pair * stride + m);
            for (int c = 0; c < count; c++) sums[m][c] = add_pairs(sums[m][c], value[c], weight);
        }
    }
    EACH_ROW
    for (int m = 0; m < rows; m++)
        for (int c = 0; c < count; c++) store_floats(out + m * dim + at + c * LANES, sums[m][c]);
}

/* The same for all of D. */
INLINE void weigh_all(const float *weights, int64_t stride, const int32_t *values, int64_t pairs, const int64_t dim,
                      float *out, const int rows) {
    int64_t at = 0;
    for (; at + WEIGHED * LANES <= dim; at += WEIGHED * LANES)
        weigh(weights, stride, values, at, pairs, dim, out, rows, WEIGHED);
    for (; at < dim; at += LANES) weigh(weights, stride, values, at, pairs, dim, out, rows, 1);
}

/* Write an item's queries of a head as pairs q_mine [D / 2, stride]; rows [stride, D] is scratch memory. Up to the next
 * multiple of 16 pairs, more is read and written, and not used. */
static void turn(const struct kv_layer *layer, const struct work *work, const struct item *item, const element *q,
                 int64_t q_stride, int64_t head, int64_t stride, element *rows, int32_t *q_mine) {
    const int64_t dim = layer->dim, queries = item->width * layer->group;
    for (int64_t m = 0; m < queries; m++)
        memcpy(rows + m * dim, query_of(layer, work, item, q, q_stride, head, m), dim * sizeof *rows);
    memset(rows + queries * dim, 0, (stride - queries) * dim * sizeof *rows);
    for (int64_t m = 0; m < stride; m += LANES)
        for (int64_t i = 0; i < dim / 2; i += LANES)
            transpose((const int32_t *)(rows + m * dim) + i, dim / 2, q_mine + i * stride + m, stride);
}

/* dim: the layer's; if it is a constant, the compiler knows all addresses. */
INLINE void attend_by(const struct kv_layer *layer, const struct work *work, const struct item *item, const element *q,
                      int64_t q_stride, int64_t head, const int64_t dim) {
    const int64_t group = layer->group, queries = item->width * group;
    const int64_t stride = (queries + LANES - 1) / LANES * LANES, vectors = stride / LANES;
    const struct seen common = seen_by_all(work, item);
    const float scale = layer->scale * (float)M_LOG2E;
    _Alignas(64) float out[MOST_QUERIES * MOST_DIM];
    _Alignas(64) float scores[KEYS * MOST_QUERIES];
    _Alignas(64) int32_t q_mine[MOST_QUERIES * MOST_DIM / 2], pairs_of_values[KEYS / 2 * MOST_DIM];
    vec top[MOST_VECTORS], total[MOST_VECTORS];

    const int tiles = by_tiles(dim);
    turn(layer, work, item, q, q_stride, head, stride, (element *)out, q_mine);
    memset(out, 0, stride * dim * sizeof *out);
    for (int64_t g = 0; g < vectors; g++) {
        top[g] = all(NEVER);
        total[g] = all(0);
    }
    for (int64_t begin = 0; begin < item->keys; begin += KEYS) {
        const int64_t count = item->keys - begin < KEYS ? item->keys - begin : KEYS, pairs = (count + 1) / 2;
        const element *k[KEYS], *v[KEYS];
        find(layer, work, item, head, begin, count, k, v);
        vec tops[MOST_VECTORS];
        for (int64_t g = 0; g < vectors; g++) tops[g] = top[g];
        if (tiles) score_by_tiles(q_mine, k, count, dim, vectors, scale, scores, tops);
#define SCORE(stride, some) score(q_mine + g * LANES, k, count, dim, some, stride, scale, scores + g * LANES, tops + g)
        for (int64_t g = 0, now; g < vectors && !tiles; g += now) {
            now = vectors - g < SCORED ? vectors - g : SCORED;
            if (now == 1) {
                SCORE(stride, 1);
            } else if (now == 2) {
                SCORE(stride, 2);
            } else if (vectors == SCORED) {
                SCORE(SCORED * LANES, SCORED);
            } else {
                SCORE(stride, SCORED);
            }
        }
#undef SCORE
        for (int64_t pair = 0; pair < pairs; pair++) {
            static const element none[MOST_DIM];
            const element *second = 2 * pair + 1 < count ? v[2 * pair + 1] : none;
            for (int64_t i = 0; i < dim; i += LANES)
                *(ints_at *)(pairs_of_values + pair * dim + i) = pairs_of(v[2 * pair] + i, second + i);
        }
        const int some = begin < common.first || begin + count > common.end, odd = count % 2;
        if (some) hide(work, item, group, begin, count, stride, scores);
        if (odd)
            for (int64_t m = 0; m < stride; m++) scores[count * stride + m] = NEVER;

        for (int64_t g = 0; g < vectors; g++) {
            float *mine = scores + g * LANES;
            vec now = tops[g];
            if (some) { /* some of those scores are hidden by now */
                now = top[g];
                for (int64_t key = 0; key < count; key++) now = larger(now, load_floats(mine + key * stride));
            }
            const int grown = some_above(now - top[g], MUCH);
            now = grown ? grown_only(top[g], upwards(now)) : top[g];
            vec sums = some || odd ? weights_in_place(mine, stride, pairs, now, 1)
                                   : weights_in_place(mine, stride, pairs, now, 0);
            if (!grown) {
                total[g] += sums;
                continue;
            }
            vec less = whole_power_of_two(top[g] - now);
            total[g] = total[g] * less + sums;
            if (begin) lessen(out + g * LANES * dim, less, LANES, dim);
            top[g] = now;
        }
        if (tiles) {
            weigh_by_tiles(scores, stride, pairs_of_values, pairs, dim, out);
            continue;
        }
        int64_t m = 0;
#define WEIGH(rows) \
    for (; m + rows <= queries; m += rows) \
        weigh_all(scores + m, stride, pairs_of_values, pairs, dim, out + m * dim, rows)
        WEIGH(WEIGHED_ROWS);
        WEIGH(4);
        WEIGH(3);
        WEIGH(2);
        WEIGH(1);
#undef WEIGH
    }
    for (int64_t m = 0; m < queries; m++)
        give(layer, work, item, head, m, out + m * dim, total[m / LANES][m % LANES],
             top[m / LANES][m % LANES] * (float)M_LN2);
}

static void attend(const struct kv_layer *layer, const struct work *work, const struct item *item, const element *q,
                   int64_t q_stride, int64_t head) {
    if (layer->dim == 64) /* the usual head sizes */
        attend_by(layer, work, item, q, q_stride, head, 64);
    else if (layer->dim == 128)
        attend_by(layer, work, item, q, q_stride, head, 128);
    else
        attend_by(layer, work, item, q, q_stride, head, layer->dim);
}
