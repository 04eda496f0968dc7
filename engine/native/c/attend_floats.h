/* Attention of an item if everything is multiplied as floats.
 *
 * attend(layer, work, item, q, q_stride, head): one item and one key head. Keys come KEYS at a time. The largest
 * score so far is subtracted from all scores, and sums made with a smaller one are scaled down (the online softmax
 * of Milakov and Gimelshein, 2018, as in FlashAttention), but only if it has grown much (as in FlashAttention-4). */

/* Score some keys against up to four queries [4, D], one key after the other: scores [keys, 4]. */
INLINE void score_few(const float *q, const element *const *k, int64_t keys, const int64_t dim, float *scores) {
    for (int64_t key = 0; key < keys; key++) {
        vec dots[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = 0; i < dim; i += LANES) {
            vec at = load(k[key] + i);
            for (int m = 0; m < 4; m++) dots[m] += at * load_floats(q + m * dim + i);
        }
        four sums[4];
        for (int m = 0; m < 4; m++) sums[m] = folded(dots[m]);
        for (int m = 0; m < 4; m++) scores[key * 4 + m] = (sums[m][0] + sums[m][1]) + (sums[m][2] + sums[m][3]);
    }
}

/* Tiles of sums that registers hold: keys by up to SCORED vectors of queries, and queries by vectors of values. */
enum {
    SCORED = REGISTERS == 32 ? 3 : 2,
    SCORED_KEYS = 8,
    WEIGHED_ROWS = REGISTERS == 32 ? 4 : 6,
    WEIGHED = REGISTERS == 32 ? 4 : 2
};

/* Return how many keys are scored against that many vectors at once. */
INLINE int scored_together(const int vectors) {
    return REGISTERS == 32 || vectors == 1 ? SCORED_KEYS : 6;
}

/* Return how many of the remaining vectors are scored at once. */
INLINE int64_t scored_next(int64_t left) { return left < SCORED ? left : SCORED; }

/* Score `count` consecutive keys against `vectors` vectors of queries, which are [D, stride]. */
INLINE void score_tile(const float *q, const float *k, const int count, const int64_t dim, const int vectors,
                       const int64_t stride, float *scores) {
    vec dots[SCORED_KEYS][3];
    EACH_ROW
    for (int j = 0; j < count; j++)
        for (int g = 0; g < vectors; g++) dots[j][g] = all(0);
    for (int64_t i = 0; i < dim; i++) {
        const float *at = q + i * stride;
        vec first = load_floats(at), second = first, third = first;
        if (vectors > 1) second = load_floats(at + LANES);
        if (vectors > 2) third = load_floats(at + 2 * LANES);
        KEEP(first);
        if (vectors > 1) KEEP(second);
        if (vectors > 2) KEEP(third);
        EACH_ROW
        for (int j = 0; j < count; j++) {
            vec number = all(k[j * dim + i]);
            dots[j][0] += first * number;
            if (vectors > 1) dots[j][1] += second * number;
            if (vectors > 2) dots[j][2] += third * number;
        }
    }
    EACH_ROW
    for (int j = 0; j < count; j++)
        for (int g = 0; g < vectors; g++) store_floats(scores + j * stride + g * LANES, dots[j][g]);
}

/* Score any number of keys. */
INLINE void score_lanes(const float *q, const float *const *k, int64_t keys, const int64_t dim, const int vectors,
                        const int64_t stride, float *scores) {
    const int most = scored_together(vectors);
    for (int64_t key = 0; key < keys;) {
        int count = 1; /* consecutive keys, in one block or in blocks that happen to follow each other */
        while (count < most && key + count < keys && k[key + count] == k[key] + count * dim) count++;
        if (count == most) {
            score_tile(q, k[key], most, dim, vectors, stride, scores + key * stride);
        } else if (count >= 4) {
            score_tile(q, k[key], 4, dim, vectors, stride, scores + key * stride);
            count = 4;
        } else {
            score_tile(q, k[key], 1, dim, vectors, stride, scores + key * stride);
            count = 1;
        }
        key += count;
    }
}

INLINE vec value_at(const void *values, const int wide, int64_t i) {
    return wide ? load_floats((const float *)values + i) : load((const element *)values + i);
}

/* Add weights [keys, stride] times values to out [rows, D], in D from `at` on; values are floats if `wide`. `rows`
 * queries and `count` vectors stay in registers. */
INLINE void weigh(const float *weights, int64_t stride, const void *const *v, const int wide, int64_t at,
                  int64_t keys, int64_t dim, float *out, const int rows, const int count) {
    vec sums[WEIGHED_ROWS][WEIGHED];
    EACH_ROW
    for (int m = 0; m < rows; m++)
        for (int c = 0; c < count; c++) sums[m][c] = load_floats(out + m * dim + at + c * LANES);
    for (int64_t key = 0; key < keys; key++) {
        for (int c = 0; c < count; c += 2) {
            vec first = value_at(v[key], wide, at + c * LANES), second = first;
            if (count > 1) second = value_at(v[key], wide, at + (c + 1) * LANES);
            KEEP(first);
            KEEP(second);
            EACH_ROW
            for (int m = 0; m < rows; m++) {
                sums[m][c] += first * weights[key * stride + m];
                if (count > 1) sums[m][c + 1] += second * weights[key * stride + m];
            }
        }
    }
    EACH_ROW
    for (int m = 0; m < rows; m++)
        for (int c = 0; c < count; c++) store_floats(out + m * dim + at + c * LANES, sums[m][c]);
}

/* The same for all of D. */
INLINE void weigh_all(const float *weights, int64_t stride, const void *const *v, const int wide, int64_t keys,
                      int64_t dim, float *out, const int rows) {
    int64_t at = 0;
    for (; at + WEIGHED * LANES <= dim; at += WEIGHED * LANES)
        weigh(weights, stride, v, wide, at, keys, dim, out, rows, WEIGHED);
    for (; at < dim; at += LANES) weigh(weights, stride, v, wide, at, keys, dim, out, rows, 1);
}

/* Turn `count` vectors of scores with this stride into weights; return their sum. */
INLINE vec weights_in_place(float *scores, int64_t stride, vec top, const int masked, const int count) {
    vec x[4], sums = {0};
    EACH_ROW
    for (int i = 0; i < count; i++) x[i] = load_floats(scores + i * stride) - top;
    exponentials_of(x, count);
    EACH_ROW
    for (int i = 0; i < count; i++) {
        if (masked) {
            ints there = ~(load_floats(scores + i * stride) <= NEVER);
            x[i] = (vec)((ints)x[i] & there);
        }
        store_floats(scores + i * stride, x[i]);
        sums += x[i];
    }
    return sums;
}

/* Scores are [keys, stride]: whole vectors of queries, or `few`, up to four queries, so that a vector may hold several
 * keys. Few are added in another order than many, so an item must not be steady. */
static void attend(const struct kv_layer *layer, const struct work *work, const struct item *item, const element *q,
                   int64_t q_stride, int64_t head) {
    const int64_t dim = layer->dim, group = layer->group, queries = item->width * group;
    const int few = queries <= 4 && !item->steady;
    const int64_t stride = few ? 4 : (queries + LANES - 1) / LANES * LANES;
    const int64_t vectors = stride < LANES ? 1 : stride / LANES;
    const struct seen common = seen_by_all(work, item);
    float q_mine[MOST_QUERIES * MOST_DIM], out[MOST_QUERIES * MOST_DIM], scores[KEYS * MOST_QUERIES];
    vec top[MOST_VECTORS], total[MOST_VECTORS];

    float *rows = few ? q_mine : out; /* [stride, D] */
    memset(rows + queries * dim, 0, (stride - queries) * dim * sizeof *rows);
    for (int64_t m = 0; m < queries; m++) {
        const element *from = query_of(layer, work, item, q, q_stride, head, m);
        for (int64_t i = 0; i < dim; i += LANES) store_floats(rows + m * dim + i, load(from + i) * layer->scale);
    }
    if (!few)
        for (int64_t m = 0; m < stride; m += LANES)
            for (int64_t i = 0; i < dim; i++) {
                vec column;
                for (int lane = 0; lane < LANES; lane++) column[lane] = rows[(m + lane) * dim + i];
                store_floats(q_mine + i * stride + m, column);
            }
    memset(out, 0, stride * dim * sizeof *out);
    for (int64_t g = 0; g < vectors; g++) {
        top[g] = all(NEVER);
        total[g] = all(0);
    }
    for (int64_t begin = 0; begin < item->keys; begin += KEYS) {
        const int64_t count = item->keys - begin < KEYS ? item->keys - begin : KEYS;
        const element *k[KEYS], *v[KEYS];
        const float *kf[KEYS], *vf[KEYS]; /* the same as floats, if there are many queries */
        find(layer, work, item, head, begin, count, k, v);
        if (few) {
            if (dim == 64) /* the usual size of small heads: the compiler keeps the queries in registers */
                score_few(q_mine, k, count, 64, scores);
            else
                score_few(q_mine, k, count, dim, scores);
        } else {
#ifdef BFLOAT16
            static _Thread_local float floats[2 * KEYS * MOST_DIM];
            for (int64_t key = 0; key < count; key++) {
                float *k_mine = floats + key * dim, *v_mine = floats + (KEYS + key) * dim;
                for (int64_t i = 0; i < dim; i += LANES) {
                    store_floats(k_mine + i, load(k[key] + i));
                    store_floats(v_mine + i, load(v[key] + i));
                }
                kf[key] = k_mine;
                vf[key] = v_mine;
            }
#else
            memcpy(kf, k, sizeof k);
            memcpy(vf, v, sizeof v);
#endif
#define SCORE(dim, some) /* constant strides if all vectors are scored at once */ \
    score_lanes(q_mine + g * LANES, kf, count, dim, some, LANES == 16 ? some * LANES : stride, \
                scores + g * LANES)
#define SCORE_USUAL(some) /* constant head sizes, so that the compiler knows all addresses */ \
    if (dim == 64)                                                                          \
        SCORE(64, some);                                                                    \
    else if (dim == 128)                                                                    \
        SCORE(128, some);                                                                   \
    else                                                                                    \
        SCORE(dim, some)
            for (int64_t g = 0, now; g < vectors; g += now) {
                now = scored_next(vectors - g);
                if (now == 1) {
                    SCORE(dim, 1);
                } else if (now == 2) {
                    SCORE_USUAL(2);
                } else {
                    SCORE_USUAL(3);
                }
            }
        }
        const int some = begin < common.first || begin + count > common.end;
        if (some) hide(work, item, group, begin, count, stride, scores);
        int64_t last = (count * stride + LANES - 1) / LANES; /* vectors of scores */
        for (int64_t i = count * stride; i < last * LANES; i++) scores[i] = NEVER;
        const int masked = some || last * LANES > count * stride;

        for (int64_t g = 0; g < vectors; g++) {
            vec now = top[g], sums = all(0);
            for (int64_t i = g; i < last; i += vectors) now = larger(now, load_floats(scores + i * LANES));
            const int grown = some_above(now - top[g], MUCH);
            if (grown && few) /* a vector holds the scores of several keys */
                for (int lane = 0; lane < 4; lane++) {
                    float most = NEVER;
                    for (int i = lane; i < LANES; i += 4) most = now[i] > most ? now[i] : most;
                    for (int i = lane; i < LANES; i += 4) now[i] = most;
                }
            now = grown ? grown_only(top[g], now) : top[g];
            int64_t i = g;
#define WEIGHTS(masked) /* in the same groups if some are masked, so that they are added in the same order */ \
    for (; i + 3 * vectors < last; i += 4 * vectors)                                                          \
        sums += weights_in_place(scores + i * LANES, vectors * LANES, now, masked, 4);                        \
    for (; i < last; i += vectors) sums += weights_in_place(scores + i * LANES, vectors * LANES, now, masked, 1)
            if (masked) {
                WEIGHTS(1);
            } else {
                WEIGHTS(0);
            }
#undef WEIGHTS
            if (!grown) {
                total[g] += sums;
                continue;
            }
            vec less = exponential(top[g] - now);
            total[g] = total[g] * less + sums;
            if (begin) lessen(out + g * LANES * dim, less, few ? 4 : LANES, dim);
            top[g] = now;
        }
#define WEIGH(v, wide, rows) \
    weigh_all(scores + m, stride, (const void *const *)v, wide, count, dim, out + m * dim, rows)
        int64_t m = 0;
        if (few) {
            WEIGH(v, 0, 4);
        } else {
            for (; m + WEIGHED_ROWS <= queries; m += WEIGHED_ROWS) WEIGH(vf, 1, WEIGHED_ROWS);
            for (; m + 4 <= queries; m += 4) WEIGH(vf, 1, 4);
            for (; m < queries; m += 2) WEIGH(vf, 1, 2);
        }
#undef WEIGH
    }
    for (int64_t m = 0; m < queries; m++) {
        float weight = total[m / LANES][m % LANES];
        if (few)
            for (int lane = m + 4; lane < LANES; lane += 4) weight += total[0][lane];
        give(layer, work, item, head, m, out + m * dim, weight, top[m / LANES][m % LANES]);
    }
}
