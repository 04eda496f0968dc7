/* Attention over the paged cache. Threads take the items of a work list one by one. */

struct attended {
    const struct kv_layer *layer;
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

/* Join the items' results for each token into one. */
static void join_some(const void *what, int64_t begin, int64_t end) {
    const struct attended *of = what;
    const struct work *work = of->work;
    const int64_t dim = of->layer->dim, heads = of->layer->kv_heads * of->layer->group;
    for (int64_t token = begin; token < end; token++)
        for (int64_t head = 0; head < heads; head++) {
            const int64_t *mine = work->places + work->first_place[token];
            const int64_t several = work->first_place[token + 1] - work->first_place[token];
            if (!several) break;
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

/* Compute the attention of all tokens over the paged cache: q and out [T, Q, D]; q has the token stride q_stride. A
 * token that is in no item is left out. */
void attention(const struct kv_layer *layer, const struct work *work, const element *q, int64_t q_stride, element *out,
               int64_t tokens) {
    const struct attended of = {layer, work, q, q_stride, out};
    share(attend_some, &of, work->count * layer->kv_heads, 1, 1); /* one item may take much longer than another */
    share_rows(join_some, &of, tokens, layer->kv_heads * layer->group * layer->dim, WORTH_THREADS / 8);
}
