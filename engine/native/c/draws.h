/* Draws: from logits to tokens by races of exponential variates (engine/sampling/draw.py), and the variates. */

/* Philox 4x32-10: turn the counter into four random words (sampling/philox.py). Changes counter and key. */
static inline void philox(uint32_t counter[4], uint32_t key[2]) {
    for (int round = 0; round < 10; round++) {
        uint64_t first = (uint64_t)counter[0] * 0xD2511F53u, second = (uint64_t)counter[2] * 0xCD9E8D57u;
        uint32_t words[4] = {(uint32_t)(second >> 32) ^ counter[1] ^ key[0], (uint32_t)second,
                             (uint32_t)(first >> 32) ^ counter[3] ^ key[1], (uint32_t)first};
        memcpy(counter, words, sizeof words);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
}

/* Write `count` standard exponential variates of a stream, for one seed and position. */
static void variates(uint64_t seed, uint64_t position, int64_t stream, int64_t count, double *out) {
    for (int64_t lane = 0; lane * 4 < count; lane++) {
        uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)lane, (uint32_t)stream};
        uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        philox(counter, key);
        for (int64_t i = lane * 4; i < count && i < lane * 4 + 4; i++)
            out[i] = -log((counter[i - lane * 4] + 0.5) * 0x1p-32);
    }
}

struct varied {
    const int64_t *seeds, *positions;
    double *out;
    int64_t count, stream;
};

static void exponentials_some(const void *what, int64_t begin, int64_t end) {
    const struct varied *of = what;
    for (int64_t row = begin; row < end; row++)
        variates(of->seeds[row], of->positions[row], of->stream, of->count, of->out + row * of->count);
}

/* Write standard exponential variates of a stream, [N, count]: one row for each seed and position [N]. */
void exponentials(const int64_t *seeds, const int64_t *positions, double *out, int64_t rows, int64_t count,
                  int64_t stream) {
    const struct varied of = {seeds, positions, out, count, stream};
    share_rows(exponentials_some, &of, rows, count, WORTH_THREADS / 16);
}

/* The weights of SUMMED tokens are summed as one block. The others stand in place of a token: all tokens are excluded; a
 * logit is NaN or infinite (both as in batch.py); there is no memory. */
enum { SUMMED = 256, NONE_LEFT = -1, NO_NUMBERS = -2, NO_ROOM = -3 };

/* What draws are made from: scores, one row of them for each draw, and settings, each [draws]. */
struct drawn {
    const void *scores; /* of `element`, or floats */
    int floats;
    const int64_t *rows, *seeds, *positions, *top_k;
    const double *temperatures, *min_p, *top_p;
    int64_t vocab, *out;
};

/* The distribution of a draw, not normalized: the largest weight is 1. */
struct odds {
    int64_t vocab, blocks;
    float *weights;       /* [blocks, SUMMED] */
    float *sums, *maxima; /* of the blocks, before any weight is dropped */
    float *some;          /* room for all weights, and a vector more */
};

/* Load a vector of logits; if fewer are left than a vector holds, the other lanes are excluded. */
INLINE vec some_scores(const void *scores, int64_t at, int64_t there, const int floats) {
    if (floats) {
        const float *from = (const float *)scores + at;
        if (there >= LANES) return load_floats(from);
        vec some = all(-INFINITY);
        if (there > 0) memcpy(&some, from, there * sizeof *from);
        return some;
    }
    const element *from = (const element *)scores + at;
    if (there >= LANES) return load(from);
    element some[LANES];
    store(some, all(-INFINITY));
    if (there > 0) memcpy(some, from, there * sizeof *some);
    return load(some);
}

/* Find the highest of a row of scores. Returns 0, or why the row cannot be drawn from. */
INLINE int find_top(const void *scores, int64_t vocab, float *top, const int floats) {
    vec most = all(-INFINITY);
    ints none = {0};
    for (int64_t i = 0; i < vocab; i += LANES) {
        vec score = some_scores(scores, i, vocab - i, floats);
        none |= score != score;
        most = larger(score, most);
    }
    *top = largest(most);
    int numbers_all = *top < INFINITY;
    for (int lane = 0; lane < LANES; lane++) numbers_all &= !none[lane];
    return !numbers_all ? NO_NUMBERS : *top == -INFINITY ? NONE_LEFT : 0;
}

/* Weigh four vectors of a row's scores at a temperature of 1 / warmth; the weight of `top` is 1. */
INLINE void weigh_scores(const void *scores, int64_t from, int64_t vocab, float top, float warmth, vec *weight,
                         const int floats) {
    vec x[4];
    EACH_ROW
    for (int j = 0; j < 4; j++) {
        const int64_t at = from + j * LANES;
        x[j] = weight[j] = (some_scores(scores, at, vocab - at, floats) - top) * warmth;
    }
    exponentials_of(weight, 4);
    EACH_ROW
    for (int j = 0; j < 4; j++) /* 0 where exponentials_of clamps its argument */
        weight[j] = (vec)((ints)weight[j] & (x[j] >= -87.0f));
}

/* Return the first token with the highest score of a row, or why there is none. */
INLINE int64_t first_of_highest(const void *scores, int64_t vocab, const int floats) {
    float top;
    const int told = find_top(scores, vocab, &top, floats);
    if (told) return told;
    for (int64_t i = 0;; i += LANES) {
        const ints there = some_scores(scores, i, vocab - i, floats) == all(top);
        for (int lane = 0; lane < LANES; lane++)
            if (there[lane]) return i + lane;
    }
}

/* Weigh a row of scores at a temperature of 1 / warmth. Returns 0, or why it cannot be drawn from. */
INLINE int odds_of(const void *scores, float warmth, struct odds *of, const int floats) {
    const int64_t vocab = of->vocab;
    float top;
    const int told = find_top(scores, vocab, &top, floats);
    if (told) return told;
    for (int64_t block = 0; block < of->blocks; block++) {
        vec sum_of = all(0), most_of = all(0);
        for (int64_t i = block * SUMMED; i < (block + 1) * SUMMED; i += 4 * LANES) {
            vec weight[4];
            weigh_scores(scores, i, vocab, top, warmth, weight, floats);
            EACH_ROW
            for (int j = 0; j < 4; j++) {
                store_floats(of->weights + i + j * LANES, weight[j]);
                sum_of += weight[j];
                most_of = larger(weight[j], most_of);
            }
        }
        of->sums[block] = sum(sum_of);
        of->maxima[block] = largest(most_of);
    }
    return 0;
}

/* Copy the weights from `least` up; return how many. */
static int64_t those_from(float least, const struct odds *of) {
    int64_t count = 0;
    for (int64_t block = 0; block < of->blocks; block++) {
        if (of->maxima[block] < least) continue;
        const float *weights = of->weights + block * SUMMED;
#if defined __AVX512BW__
        for (int64_t i = 0; i < SUMMED; i += LANES) {
            const __m512 weight = (__m512)load_floats(weights + i);
            const __mmask16 there = _mm512_cmp_ps_mask(weight, (__m512)all(least), _CMP_GE_OQ);
            _mm512_storeu_ps(of->some + count, _mm512_maskz_compress_ps(there, weight));
            count += __builtin_popcount(there);
        }
#else
        for (int64_t i = 0; i < SUMMED; i++) {
            of->some[count] = weights[i];
            count += weights[i] >= least;
        }
#endif
    }
    return count;
}

/* Drop the weights below `least`. */
static void drop_below(float least, struct odds *of) {
    for (int64_t block = 0; block < of->blocks; block++) {
        vec sum_of = all(0);
        if (of->maxima[block] >= least) { /* else the weights stay, in a block that cannot be drawn */
            float *weights = of->weights + block * SUMMED;
            for (int64_t i = 0; i < SUMMED; i += LANES) {
                vec weight = load_floats(weights + i);
                weight = (vec)((ints)weight & (weight >= all(least)));
                store_floats(weights + i, weight);
                sum_of += weight;
            }
        }
        of->sums[block] = sum(sum_of);
    }
}

/* Add up the values [count] from `least` up, or count them. Zeros stand behind them. */
INLINE double held_from(float least, const float *values, int64_t count, const int counted) {
    enum { TOGETHER = 64 * LANES }; /* so few are added as floats */
    double held = 0;
    for (int64_t begin = 0; begin < count; begin += TOGETHER) {
        vec part = all(0);
        for (int64_t i = begin; i < count && i < begin + TOGETHER; i += LANES) {
            const vec value = load_floats(values + i);
            part += (vec)((value >= all(least)) & (ints)(counted ? all(1) : value));
        }
        held += sum(part);
    }
    return held;
}

/* Return the least of the largest values [count], none of them negative, that together hold `wanted`: of their sum, or
 * if `counted` of their number; 0 if all of them hold less. Bit by bit: the bits of such numbers, as integers, have the
 * same order. Writes a vector of zeros behind the values. */
INLINE float edge_of(float *values, int64_t count, double wanted, const int counted) {
    store_floats(values + count, all(0)); /* never above an edge */
    int32_t edge = 0;
    for (int bit = 30; bit >= 0; bit--) {
        const int32_t bits = edge | (int32_t)1 << bit;
        float tried;
        memcpy(&tried, &bits, sizeof tried);
        const double held = held_from(tried, values, count, counted);
        if (held > 0 && held >= wanted) edge = bits;
    }
    float found;
    memcpy(&found, &edge, sizeof found);
    return found;
}

static float edge_of_sum(float *values, int64_t count, double wanted) { return edge_of(values, count, wanted, 0); }
static float edge_of_count(float *values, int64_t count, double wanted) { return edge_of(values, count, wanted, 1); }

/* Drop what min-p, then top-k, then top-p exclude (engine/sampling/draw.py); weights equal to an edge stay. */
static void cut(float min_p, int64_t top_k, double top_p, struct odds *of) {
    float least = min_p;
    if (top_k > 0 && top_k < of->vocab) {
        float bound = FLT_MIN; /* at least top_k weights are as large, if there are so many above 0 */
        if (top_k <= of->blocks) {
            memcpy(of->some, of->maxima, of->blocks * sizeof *of->some);
            bound = edge_of_count(of->some, of->blocks, top_k);
        }
        if (bound < least) bound = least;
        if (bound < FLT_MIN) bound = FLT_MIN;
        const int64_t count = those_from(bound, of);
        if (count >= top_k) least = edge_of_count(of->some, count, top_k);
    }
    if (least > 0) drop_below(least, of);
    if (top_p < 1) {
        double total = 0;
        for (int64_t block = 0; block < of->blocks; block++) total += of->sums[block];
        float bound = total * (1 - top_p) / of->vocab; /* all below it hold less than 1 - top_p together */
        if (bound < least) bound = least;
        const float edge = edge_of_sum(of->some, those_from(bound, of), total * top_p);
        drop_below(edge < bound ? bound : edge, of);
    }
}

/* Return the index of the largest weight divided by its variate; the first one of equals. */
static int64_t raced(const float *weights, const double *variates, int64_t count) {
    int64_t first = 0;
    double most = -1;
    for (int64_t i = 0; i < count; i++) {
        double mine = weights[i] / variates[i];
        if (mine > most) {
            most = mine;
            first = i;
        }
    }
    return first;
}

/* Whether two draws are from the same distribution. */
static inline int alike(const struct drawn *of, int64_t a, int64_t b) {
    return of->rows[a] == of->rows[b] && of->temperatures[a] == of->temperatures[b] && of->min_p[a] == of->min_p[b] &&
           of->top_k[a] == of->top_k[b] && of->top_p[a] == of->top_p[b];
}

/* Make the distribution of a draw. Returns 0, or why it cannot be drawn from. */
INLINE int64_t prepare(const struct drawn *of, int64_t draw, const void *scores, struct odds *odds, const int floats) {
    const int told = odds_of(scores, 1 / (float)of->temperatures[draw], odds, floats);
    if (!told) cut(of->min_p[draw], of->top_k[draw], of->top_p[draw], odds);
    return told;
}

static void draw_some(const void *what, int64_t begin, int64_t end) {
    const struct drawn *of = what;
    const int64_t vocab = of->vocab, blocks = (vocab + SUMMED - 1) / SUMMED;
    const int64_t room = blocks * (2 * SUMMED + 2) + LANES, variates_room = blocks + SUMMED;
    double *numbers = own_room(variates_room * sizeof *numbers + room * sizeof(float));
    if (!numbers) {
        for (int64_t draw = begin; draw < end; draw++) of->out[draw] = NO_ROOM;
        return;
    }
    float *weights = (float *)(numbers + variates_room), *sums = weights + blocks * SUMMED;
    struct odds odds = {vocab, blocks, weights, sums, sums + blocks, sums + 2 * blocks};
    int64_t prepared = -1; /* the draw whose distribution `odds` is */
    for (int64_t draw = begin; draw < end; draw++) {
        const int64_t first = of->rows[draw] * vocab;
        const void *scores = of->floats ? (const void *)((const float *)of->scores + first)
                                        : (const void *)((const element *)of->scores + first);
        if (of->temperatures[draw] == 0) {
            of->out[draw] = of->floats ? first_of_highest(scores, vocab, 1) : first_of_highest(scores, vocab, 0);
            continue;
        }
        if (prepared < 0 || !alike(of, prepared, draw)) {
            const int64_t told =
                of->floats ? prepare(of, draw, scores, &odds, 1) : prepare(of, draw, scores, &odds, 0);
            prepared = told ? -1 : draw;
            if (told) {
                of->out[draw] = told;
                continue;
            }
        }
        const uint64_t seed = of->seeds[draw], position = of->positions[draw];
        variates(seed, position, 0, blocks, numbers);
        const int64_t block = raced(sums, numbers, blocks);
        variates(seed, position, 1, SUMMED, numbers);
        of->out[draw] = block * SUMMED + raced(weights + block * SUMMED, numbers, SUMMED);
    }
}

/* Draw a token for each draw [M]: out [M] gets the token, or the reason why there is none. scores [N, V], floats or
 * elements. whole [4, M]: row of the scores, seed, position, top_k; 0 for no top-k. real [3, M]: temperature, min_p,
 * top_p. At a temperature of 0 the token is the first with the highest score. */
void draws(const void *scores, int64_t floats, const int64_t *whole, const double *real, int64_t *out, int64_t count,
           int64_t vocab) {
    const int64_t *rows = whole, *seeds = rows + count, *positions = seeds + count, *top_k = positions + count;
    const double *temperatures = real, *min_p = temperatures + count, *top_p = min_p + count;
    const struct drawn of = {scores,       floats != 0, rows,  seeds, positions, top_k,
                             temperatures, min_p,       top_p, vocab, out};
    share_rows(draw_some, &of, count, vocab, WORTH_THREADS);
}
