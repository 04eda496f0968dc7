/* What is computed for each token by itself: norm, activation, rotation. */

enum { MOST_DIM = 256 };

/* For fewer elements than this, a second thread costs more time than it saves. */
enum { WORTH_THREADS = 1 << 14 };

/* Do all rows of a width; with one thread if the work is less than several threads are worth. */
static void share_rows(doing doit, const void *what, int64_t rows, int64_t width, int64_t worth) {
    share(doit, what, rows, rows * width < worth ? rows : 1 + worth / 8 / width, rows);
}

struct normed {
    float *x;
    const element *added;
    const float *weight;
    float eps;
    element *out;
    int64_t width;
};

static void norm_some(const void *what, int64_t begin, int64_t end) {
    const struct normed *of = what;
    const int64_t width = of->width;
    for (int64_t row = begin; row < end; row++) {
        float *mine = of->x + row * width;
        const element *more = of->added ? of->added + row * width : 0;
        vec squares = {0};
        for (int64_t i = 0; i < width; i += LANES) {
            vec v = load_floats(mine + i);
            if (more) store_floats(mine + i, v += load(more + i));
            squares += v * v;
        }
        float scale = 1.0f / sqrtf(sum(squares) / width + of->eps);
        for (int64_t i = 0; i < width; i += LANES)
            store(of->out + row * width + i, load_floats(mine + i) * scale * load_floats(of->weight + i));
    }
}

/* Add `added` [T, H], if there is any, to x [T, H] float32 in place; out [T, H] is x's RMS norm times weight [H]. */
void norm(float *x, const element *added, const float *weight, float eps, element *out, int64_t rows, int64_t width) {
    const struct normed of = {x, added, weight, eps, out, width};
    share_rows(norm_some, &of, rows, width, WORTH_THREADS);
}

struct activated {
    const element *gate_up;
    element *out;
    int64_t width;
};

static void silu_mul_some(const void *what, int64_t begin, int64_t end) {
    const struct activated *of = what;
    const int64_t width = of->width;
    for (int64_t row = begin; row < end; row++) {
        const element *gate = of->gate_up + row * 2 * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load(gate + i);
            store(of->out + row * width + i, x / (exponential(-x) + 1.0f) * load(up + i));
        }
    }
}

/* gate_up [T, 2I] -> out [T, I]: silu(gate) * up. */
void silu_mul(const element *gate_up, element *out, int64_t rows, int64_t width) {
    const struct activated of = {gate_up, out, width};
    share_rows(silu_mul_some, &of, rows, width, WORTH_THREADS / 4);
}

/* Convert one head to floats: with RMS norm if there is a weight [D], and rotated if there are turns [D / 2, 2], one
 * (cosine, sine) for each pair of neighbours. */
static inline void turned(const element *head, const float *weight, float eps, const float *turn, int64_t dim,
                          float *out) {
    vec squares = {0};
    for (int64_t i = 0; i < dim; i += LANES) {
        vec v = load(head + i);
        store_floats(out + i, v);
        squares += v * v;
    }
    if (weight) {
        float scale = 1.0f / sqrtf(sum(squares) / dim + eps);
        for (int64_t i = 0; i < dim; i += LANES)
            store_floats(out + i, load_floats(out + i) * scale * load_floats(weight + i));
#ifdef BFLOAT16
        for (int64_t i = 0; i < dim; i += LANES) { /* a norm's results have the model's type, as elsewhere */
            element rounded[LANES];
            store(rounded, load_floats(out + i));
            store_floats(out + i, load(rounded));
        }
#endif
    }
    if (turn)
        for (int64_t i = 0; i < dim; i += 2) {
            float a = out[i], b = out[i + 1], c = turn[i], s = turn[i + 1];
            out[i] = a * c - b * s;
            out[i + 1] = a * s + b * c;
        }
}

struct stored {
    element *qkv;
    const float *q_norm, *k_norm;
    float eps;
    const float *turns;
    const int64_t *slot;
    element *pool;
    int64_t slots, heads, kv_heads, dim;
};

static void rotate_store_some(const void *what, int64_t begin, int64_t end) {
    const struct stored *of = what;
    const int64_t heads = of->heads, kv_heads = of->kv_heads, dim = of->dim;
    for (int64_t token = begin; token < end; token++) {
        element *mine = of->qkv + token * (heads + 2 * kv_heads) * dim;
        float head[MOST_DIM];
        for (int64_t number = 0; number < heads + kv_heads; number++) {
            element *at = mine + number * dim;
            const float *weight = number < heads ? of->q_norm : of->k_norm;
            turned(at, weight, of->eps, of->turns ? of->turns + token * dim : 0, dim, head);
            for (int64_t i = 0; i < dim; i += LANES) store(at + i, load_floats(head + i));
        }
        for (int64_t number = 0; number < 2 * kv_heads; number++)
            memcpy(of->pool + (number * of->slots + of->slot[token]) * dim, mine + (heads + number) * dim,
                   dim * sizeof *mine);
    }
}

/* qkv [T, (Q + 2K) D]: norm and rotate queries and keys in place, and copy keys and values into the pool [2K, slots, D]
 * at slot[t]. q_norm, k_norm [D]: both or neither. turns [T, D / 2, 2], or none. */
void rotate_store(element *qkv, const float *q_norm, const float *k_norm, float eps, const float *turns,
                  const int64_t *slot, element *pool, int64_t slots, int64_t tokens, int64_t heads, int64_t kv_heads,
                  int64_t dim) {
    const struct stored of = {qkv, q_norm, k_norm, eps, turns, slot, pool, slots, heads, kv_heads, dim};
    share_rows(rotate_store_some, &of, tokens, (heads + 2 * kv_heads) * dim, WORTH_THREADS / 2);
}
