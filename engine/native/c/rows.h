/* What is done with each token by itself: norm, activation, rotation. */

enum { MOST_DIM = 256 };

/* Below so many elements a second thread costs more than it takes off. */
enum { WORTH_THREADS = 1 << 14 };

/* x [T, H] float32 gets `added` [T, H], where there is any, in place; out [T, H] is its RMS norm times weight [H]. */
void norm(float *x, const element *added, const float *weight, float eps, element *out, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width >= WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        float *mine = x + row * width;
        const element *more = added ? added + row * width : 0;
        vec squares = {0};
        for (int64_t i = 0; i < width; i += LANES) {
            vec v = load_floats(mine + i);
            if (more) store_floats(mine + i, v += load(more + i));
            squares += v * v;
        }
        float scale = 1.0f / sqrtf(sum(squares) / width + eps);
        for (int64_t i = 0; i < width; i += LANES)
            store(out + row * width + i, load_floats(mine + i) * scale * load_floats(weight + i));
    }
}

/* gate_up [T, 2I] -> out [T, I]: silu(gate) * up. */
void silu_mul(const element *gate_up, element *out, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width >= WORTH_THREADS / 4)
    for (int64_t row = 0; row < rows; row++) {
        const element *gate = gate_up + row * 2 * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load(gate + i);
            store(out + row * width + i, x / (exponential(-x) + 1.0f) * load(up + i));
        }
    }
}

/* One head, made floats: normed where there is a weight [D], and rotated where there are turns, pairs of neighbours by
 * a (cosine, sine) each [D / 2, 2]. */
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
        for (int64_t i = 0; i < dim; i += LANES) { /* a norm's results are of the model's type, as elsewhere */
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

/* qkv [T, (Q + 2K) D]: queries and keys normed and rotated in place, keys and values put into the pool [2K, slots, D]
 * at slot[t]. q_norm, k_norm [D]: both or none. turns [T, D / 2, 2], or none. */
void rotate_store(element *qkv, const float *q_norm, const float *k_norm, float eps, const float *turns,
                  const int64_t *slot, element *pool, int64_t slots, int64_t tokens, int64_t heads, int64_t kv_heads,
                  int64_t dim) {
    int64_t width = (heads + 2 * kv_heads) * dim;
#pragma omp parallel for schedule(static) if (tokens * width >= WORTH_THREADS / 2)
    for (int64_t token = 0; token < tokens; token++) {
        element *mine = qkv + token * width;
        float head[MOST_DIM];
        for (int64_t number = 0; number < heads + kv_heads; number++) {
            element *at = mine + number * dim;
            turned(at, number < heads ? q_norm : k_norm, eps, turns ? turns + token * dim : 0, dim, head);
            for (int64_t i = 0; i < dim; i += LANES) store(at + i, load_floats(head + i));
        }
        for (int64_t number = 0; number < 2 * kv_heads; number++)
            memcpy(pool + (number * slots + slot[token]) * dim, mine + (heads + number) * dim, dim * sizeof *pool);
    }
}
