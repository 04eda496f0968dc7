/* The two products of an item's attention in AMX tiles. */

#ifdef AMX
_Static_assert(KEYS % TILE_INPUTS == 0 && TILE_INPUTS % TILE_ROWS == 0, "keys come in whole tiles");

/* Whether tiles are used for heads of this size: they must fill them. If so, this thread's tiles get their shapes. */
INLINE int by_tiles(int64_t dim) {
    if (!amx_granted || dim % TILE_INPUTS) return 0;
    shape_tiles(2 * TILE_ROWS);
    return 1;
}

/* Score `keys` keys, [keys, D], with `vectors` vectors of queries, which are pairs [D / 2, stride]: scores [keys,
 * stride]. Rows of scores behind the keys' are overwritten, up to a whole tile. */
INLINE void score_tiles(const int32_t *q, const element *const *k, int64_t keys, const int64_t dim, const int vectors,
                        const int64_t stride, float *scores) {
    element copy[TILE_ROWS * MOST_DIM];
    for (int64_t key = 0; key < keys; key += TILE_ROWS) {
        const element *rows = k[key];
        int64_t following = 1;
        while (following < TILE_ROWS && key + following < keys && k[key + following] == rows + following * dim)
            following++;
        if (following < TILE_ROWS) { /* in several blocks, or fewer than a tile has rows */
            for (int64_t row = 0; row < TILE_ROWS; row++)
                memcpy(copy + row * dim, k[key + row < keys ? key + row : key], dim * sizeof *copy);
            rows = copy;
        }
        TILE_ZERO(0);
        if (vectors > 1) TILE_ZERO(1);
        if (vectors > 2) TILE_ZERO(2);
        for (int64_t i = 0; i < dim; i += TILE_INPUTS) {
            const int32_t *pairs = q + i / 2 * stride;
            TILE_LOAD(4, rows + i, dim * sizeof *rows);
            TILE_LOAD(6, pairs, stride * sizeof *q);
            TILE_BFLOAT16(0, 4, 6);
            if (vectors > 1) {
                TILE_LOAD(7, pairs + LANES, stride * sizeof *q);
                TILE_BFLOAT16(1, 4, 7);
            }
            if (vectors > 2) {
                TILE_LOAD(5, pairs + 2 * LANES, stride * sizeof *q);
                TILE_BFLOAT16(2, 4, 5);
            }
        }
        float *at = scores + key * stride;
        TILE_STORE(0, at, stride * sizeof *scores);
        if (vectors > 1) TILE_STORE(1, at + LANES, stride * sizeof *scores);
        if (vectors > 2) TILE_STORE(2, at + 2 * LANES, stride * sizeof *scores);
    }
}

/* Multiply scores [keys, stride] of vectors of queries by `scale` in place; `tops` become the largest. */
INLINE void scale_scores(float *scores, int64_t keys, const int vectors, const int64_t stride, float scale, vec *tops) {
    vec most[MOST_VECTORS];
    for (int g = 0; g < vectors; g++) most[g] = tops[g];
    for (int64_t key = 0; key < keys; key++)
        for (int g = 0; g < vectors; g++) {
            vec scaled = load_floats(scores + key * stride + g * LANES) * scale;
            most[g] = larger(most[g], scaled);
            store_floats(scores + key * stride + g * LANES, scaled);
        }
    for (int g = 0; g < vectors; g++) tops[g] = most[g];
}

/* Like score, for all of an item's queries, pairs [D / 2, LANES * vectors]; rows of scores behind the keys' are
 * overwritten. */
INLINE void score_by_tiles(const int32_t *q, const element *const *k, int64_t keys, const int64_t dim, int64_t vectors,
                           float scale, float *scores, vec *tops) {
#define SCORE(count)                                                      \
    score_tiles(q, k, keys, dim, count, LANES * count, scores);           \
    scale_scores(scores, keys, count, LANES * count, scale, tops)
    _Static_assert(MOST_VECTORS == 3, "a case for each number of vectors");
    if (vectors == 1) {
        SCORE(1);
    } else if (vectors == 2) {
        SCORE(2);
    } else {
        SCORE(3);
    }
#undef SCORE
}

/* Add weights times values, pairs [pairs, D], to out [16, D], in D from `at` on. weights: pairs [16, KEYS / 2] of 16
 * queries. pairs: a multiple of TILE_PAIRED. count: four tiles of values, or one. */
INLINE void weigh_tiles(const int32_t *weights, const int32_t *values, int64_t at, int64_t pairs, const int64_t dim,
                        const int count, float *out) {
    enum { PITCH = KEYS / 2 * sizeof(int32_t) };
    const int64_t row = dim * sizeof *out;
    out += at;
    values += at;
    TILE_LOAD(0, out, row);
    if (count == 4) {
        TILE_LOAD(1, out + LANES, row);
        TILE_LOAD(2, out + 2 * LANES, row);
        TILE_LOAD(3, out + 3 * LANES, row);
    }
    for (int64_t pair = 0; pair < pairs; pair += TILE_PAIRED) {
        const int32_t *mine = values + pair * dim;
        TILE_LOAD(4, weights + pair, PITCH);
        TILE_LOAD(6, mine, row);
        TILE_BFLOAT16(0, 4, 6);
        if (count == 4) {
            TILE_LOAD(7, mine + LANES, row);
            TILE_BFLOAT16(1, 4, 7);
            TILE_LOAD(5, mine + 2 * LANES, row);
            TILE_BFLOAT16(2, 4, 5);
            TILE_LOAD(6, mine + 3 * LANES, row);
            TILE_BFLOAT16(3, 4, 6);
        }
    }
    TILE_STORE(0, out, row);
    if (count == 4) {
        TILE_STORE(1, out + LANES, row);
        TILE_STORE(2, out + 2 * LANES, row);
        TILE_STORE(3, out + 3 * LANES, row);
    }
}

/* Add weights, pairs [pairs, stride] of `stride` queries, times values to out [stride, D]. The rows of weights and
 * values up to the next multiple of TILE_PAIRED are overwritten. All weights are transposed first: a tile that is
 * loaded right after its rows were stored waits for them. */
INLINE void weigh_by_tiles(float *weights, int64_t stride, int32_t *values, int64_t pairs, const int64_t dim,
                           float *out) {
    _Alignas(64) int32_t turned[MOST_QUERIES * KEYS / 2];
    const int64_t whole = (pairs + TILE_PAIRED - 1) / TILE_PAIRED * TILE_PAIRED;
    memset(weights + pairs * stride, 0, (whole - pairs) * stride * sizeof *weights);
    memset(values + pairs * dim, 0, (whole - pairs) * dim * sizeof *values);
    for (int64_t m = 0; m < stride; m += LANES)
        for (int64_t pair = 0; pair < whole; pair += TILE_PAIRED)
            transpose((const int32_t *)weights + pair * stride + m, stride, turned + m * KEYS / 2 + pair, KEYS / 2);
    for (int64_t m = 0; m < stride; m += LANES) {
        int64_t at = 0;
        for (; at + 4 * LANES <= dim; at += 4 * LANES)
            weigh_tiles(turned + m * KEYS / 2, values, at, whole, dim, 4, out + m * dim);
        for (; at < dim; at += LANES) weigh_tiles(turned + m * KEYS / 2, values, at, whole, dim, 1, out + m * dim);
    }
}
#else
INLINE int by_tiles(int64_t dim) {
    (void)dim;
    return 0;
}
#define score_by_tiles(...) ((void)0)
#define weigh_by_tiles(...) ((void)0)
#endif
