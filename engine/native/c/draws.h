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

struct drawn {
    const element *scores;
    const int64_t *rows, *seeds, *positions;
    const float *temperatures;
    int64_t vocab, *out;
};

/* Load a vector of logits; if fewer are left than a vector holds, the other lanes are excluded. */
INLINE vec some_scores(const element *scores, int64_t there) {
    if (there >= LANES) return load(scores);
    element some[LANES];
    store(some, all(-INFINITY));
    if (there > 0) memcpy(some, scores, there * sizeof *some);
    return load(some);
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

static void draw_some(const void *what, int64_t begin, int64_t end) {
    const struct drawn *of = what;
    const int64_t vocab = of->vocab, blocks = (vocab + SUMMED - 1) / SUMMED;
    double *numbers = own_room((blocks + SUMMED) * sizeof *numbers + blocks * (SUMMED + 1) * sizeof(float));
    float *sums = (float *)(numbers + blocks + SUMMED), *weights = sums + blocks;
    for (int64_t draw = begin; draw < end; draw++) {
        const element *scores = of->scores + of->rows[draw] * vocab;
        const float warmth = 1 / of->temperatures[draw];
        vec most = all(-INFINITY);
        ints none = {0};
        for (int64_t i = 0; i < vocab; i += LANES) {
            vec score = some_scores(scores + i, vocab - i);
            none |= score != score;
            most = larger(score, most);
        }
        const float top = largest(most);
        int numbers_all = top < INFINITY;
        for (int lane = 0; lane < LANES; lane++) numbers_all &= !none[lane];
        if (!numbers || !numbers_all || top == -INFINITY) {
            of->out[draw] = !numbers ? NO_ROOM : !numbers_all ? NO_NUMBERS : NONE_LEFT;
            continue;
        }
        for (int64_t block = 0; block < blocks; block++) {
            vec sum_of = all(0);
            for (int64_t i = block * SUMMED; i < (block + 1) * SUMMED; i += 4 * LANES) {
                vec x[4], weight[4];
                EACH_ROW
                for (int j = 0; j < 4; j++)
                    x[j] = weight[j] = (some_scores(scores + i + j * LANES, vocab - i - j * LANES) - top) * warmth;
                exponentials_of(weight, 4);
                EACH_ROW
                for (int j = 0; j < 4; j++) { /* 0 where exponentials_of clamps its argument */
                    weight[j] = (vec)((ints)weight[j] & (x[j] >= -87.0f));
                    store_floats(weights + i + j * LANES, weight[j]);
                    sum_of += weight[j];
                }
            }
            sums[block] = sum(sum_of);
        }
        const uint64_t seed = of->seeds[draw], position = of->positions[draw];
        variates(seed, position, 0, blocks, numbers);
        const int64_t block = raced(sums, numbers, blocks);
        variates(seed, position, 1, SUMMED, numbers);
        of->out[draw] = block * SUMMED + raced(weights + block * SUMMED, numbers, SUMMED);
    }
}

/* Draw one token for each draw [M], from the whole distribution of scores[rows[m]] at its temperature: out [M] gets the
 * token, or the reason why there is none. scores [N, V]. */
void draws(const element *scores, const int64_t *rows, const int64_t *seeds, const int64_t *positions,
           const float *temperatures, int64_t *out, int64_t count, int64_t vocab) {
    const struct drawn of = {scores, rows, seeds, positions, temperatures, vocab, out};
    share_rows(draw_some, &of, count, vocab, WORTH_THREADS);
}
