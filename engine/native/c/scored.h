/* Log probabilities of raw scores: a token's own, its rank, and the likeliest tokens (engine/sampling/logprobs.py). */

/* What is looked at: scores, one row of them for each token [tokens], and what is found. */
struct scored {
    const void *scores; /* of `element`, or floats */
    int floats;
    const int64_t *rows, *tokens;
    int64_t vocab, likeliest;
    float *own;
    int64_t *ranks, *ids; /* ids and values [tokens, likeliest] */
    float *values;
};

/* Keep the highest scores in descending order, of equal ones the first that came. Returns how many are kept, at most
 * `room`. */
static inline int64_t keep_highest(float score, int64_t id, int64_t kept, int64_t room, float *scores, int64_t *ids) {
    int64_t place = kept < room ? kept : room - 1;
    if (kept == room && !(score > scores[place])) return kept;
    for (; place > 0 && score > scores[place - 1]; place--) {
        scores[place] = scores[place - 1];
        ids[place] = ids[place - 1];
    }
    scores[place] = score;
    ids[place] = id;
    return kept < room ? kept + 1 : kept;
}

/* Find the likeliest tokens of a row, from the maxima of its blocks of SUMMED tokens. */
INLINE void find_likeliest(const void *scores, int64_t vocab, const float *maxima, int64_t blocks, int64_t count,
                           float *found, int64_t *ids, const int floats) {
    float least = -INFINITY;
    if (count <= blocks) { /* at least so many scores are as high */
        int64_t kept = 0;
        for (int64_t block = 0; block < blocks; block++)
            kept = keep_highest(maxima[block], block, kept, count, found, ids);
        least = found[count - 1];
    }
    int64_t kept = 0;
    for (int64_t block = 0; block < blocks; block++) {
        if (maxima[block] < least) continue;
        for (int64_t i = block * SUMMED; i < (block + 1) * SUMMED && i < vocab; i += LANES) {
            const vec score = some_scores(scores, i, vocab - i, floats);
            for (int64_t lane = 0; lane < LANES && i + lane < vocab; lane++)
                if (score[lane] >= least) kept = keep_highest(score[lane], i + lane, kept, count, found, ids);
        }
    }
}

/* Look at a row of scores for the i-th token. maxima: room for a number per block. */
INLINE void score_token(const struct scored *of, const void *scores, int64_t i, float *maxima, const int floats) {
    const int64_t vocab = of->vocab, blocks = (vocab + SUMMED - 1) / SUMMED, count = of->likeliest;
    const float mine = some_scores(scores, of->tokens[i], 1, floats)[0];
    float top = -INFINITY;
    ints none = {0}, above = {0};
    for (int64_t block = 0; block < blocks; block++) {
        vec most = all(-INFINITY);
        for (int64_t at = block * SUMMED; at < (block + 1) * SUMMED; at += LANES) {
            const vec score = some_scores(scores, at, vocab - at, floats);
            none |= score != score;
            above -= score > all(mine);
            most = larger(score, most);
        }
        maxima[block] = largest(most);
        if (maxima[block] > top) top = maxima[block];
    }
    int64_t rank = 1, numbers_all = top < INFINITY && top > -INFINITY;
    for (int lane = 0; lane < LANES; lane++) {
        rank += above[lane];
        numbers_all &= !none[lane];
    }
    double total = 0;
    for (int64_t at = 0; at < blocks * SUMMED; at += 4 * LANES) {
        vec weight[4];
        weigh_scores(scores, at, vocab, top, 1, weight, floats);
        total += sum((weight[0] + weight[1]) + (weight[2] + weight[3]));
    }
    const double all_of_them = numbers_all ? top + log(total) : NAN;
    of->own[i] = mine - all_of_them;
    of->ranks[i] = rank;
    if (!count) return;
    float *values = of->values + i * count;
    find_likeliest(scores, vocab, maxima, blocks, count, values, of->ids + i * count, floats);
    for (int64_t place = 0; place < count; place++) values[place] = values[place] - all_of_them;
}

static void score_some(const void *what, int64_t begin, int64_t end) {
    const struct scored *of = what;
    const int64_t blocks = (of->vocab + SUMMED - 1) / SUMMED;
    float *maxima = own_room(blocks * sizeof *maxima);
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = of->rows[i] * of->vocab;
        if (!maxima)
            of->ranks[i] = 0;
        else if (of->floats)
            score_token(of, (const float *)of->scores + first, i, maxima, 1);
        else
            score_token(of, (const element *)of->scores + first, i, maxima, 0);
    }
}

/* Find, for each token [M], its log probability in its row of scores [N, V], floats or elements; its rank, which is 1
 * more than the number of tokens that score higher; and the `likeliest` tokens of the row with theirs, of equal ones
 * the lowest id first. If fewer scores are numbers, what is behind them says nothing. whole [2, M]: row, token. A rank
 * of 0 says that there is no memory. */
void log_probabilities(const void *scores, int64_t floats, const int64_t *whole, float *own, int64_t *ranks,
                       int64_t *ids, float *values, int64_t count, int64_t vocab, int64_t likeliest) {
    const struct scored of = {scores, floats != 0, whole, whole + count, vocab, likeliest, own, ranks, ids, values};
    share_rows(score_some, &of, count, vocab, WORTH_THREADS);
}
