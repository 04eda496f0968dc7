/* What lies between a model's products, on a CPU: one function for each thing that a step does there, where torch takes
 * a handful of operations, each with a start of its own. Compiled for the machine at hand by its own compiler (build.py),
 * once for each type of element: float, or bfloat16 where BFLOAT16 is defined. All is computed in float32 and rounded
 * once. A number depends on its own row only, whatever runs beside it and however many threads there are; but for
 * attention, where company decides what is read together and in which pieces. What is no number stays none.
 *
 * Tensors are dense unless a stride is given. Widths are multiples of LANES, which build.py's caller sees to.
 * Shapes: T tokens, H hidden, Q query heads, K key (and value) heads, G = Q / K, D head_dim.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LANES = 16 };
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef float floats_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#ifdef BFLOAT16
typedef uint16_t element;
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint16_t halves_at __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

static inline vec load(const element *at) {
    return (vec)(__builtin_convertvector((halves)*(const halves_at *)at, words) << 16);
}

/* Rounded to the nearest, to the even one of two; what is no number stays none. */
static inline void store(element *at, vec x) {
    words bits = (words)x, none = (words)(x != x);
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(halves_at *)at = __builtin_convertvector((rounded & ~none) | (0x7fc0 & none), halves);
}
#else
typedef float element;

static inline vec load(const element *at) { return *(const floats_at *)at; }
static inline void store(element *at, vec x) { *(floats_at *)at = x; }
#endif

static inline vec load_floats(const float *at) { return *(const floats_at *)at; }
static inline void store_floats(float *at, vec x) { *(floats_at *)at = x; }
static inline vec all(float x) { return x - (vec){0}; }

static inline vec larger(vec a, vec b) {
    ints first = a > b;
    return (vec)(((ints)a & first) | ((ints)b & ~first));
}

static inline vec magnitude(vec x) { return (vec)((ints)x & 0x7fffffff); }

/* x's first half by its second: eight, then four numbers. */
typedef float eight __attribute__((vector_size(32)));
typedef float four __attribute__((vector_size(16)));

static inline four folded(vec x) {
    eight low, high;
    four first, second;
    memcpy(&low, &x, sizeof low);
    memcpy(&high, (char *)&x + sizeof low, sizeof high);
    low += high;
    memcpy(&first, &low, sizeof first);
    memcpy(&second, (char *)&low + sizeof first, sizeof second);
    return first + second;
}

static inline float sum(vec x) {
    four part = folded(x);
    return (part[0] + part[1]) + (part[2] + part[3]);
}

static inline float largest(vec x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* To the nearest whole number, to the even one of two, for |x| < 2^22: behind 1.5 * 2^23 no bit is left for a fraction. */
static const float ROUNDING = 12582912.0f;

/* exp(x), within two units of the last place; x is cut to what float32 can hold: -87 to 88.
 * x = n ln 2 + r with |r| <= ln 2 / 2, where Taylor's first eight terms are exact enough; 2^n is the exponent's bits. */
static inline vec exponential(vec x) {
    ints none = (x != x) & 0x7fc00000;
    x = larger(x, all(-87.0f));
    x = -larger(-x, all(-88.0f));
    vec shifted = x * 1.44269504f + ROUNDING, n = shifted - ROUNDING;
    vec r = x - n * 0.693359375f; /* ln 2 in two parts, the first of few bits, so that n times it is exact */
    r = r + n * 2.12194440e-4f;
    vec y = r * (1.0f / 5040) + (1.0f / 720);
    y = y * r + (1.0f / 120);
    y = y * r + (1.0f / 24);
    y = y * r + (1.0f / 6);
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    return (vec)(((ints)y + ((ints)shifted << 23)) | none);
}

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

/* Products. A matrix [O, I] lies in panels of PANEL outputs, in each of which what one input is multiplied by lies together;
 * ROWS rows of inputs by one panel is what the registers hold. So each weight is read once for so many rows, and every sum
 * runs along the inputs in their order, however many rows there are. */
enum { PANEL = 2 * LANES };
#ifdef __AVX512F__
enum { ROWS = 12 };
#else
enum { ROWS = 2 }; /* vectors are several registers, of which there are fewer */
#endif

/* Of floats, or of what the elements are: panels [O / PANEL, I, PANEL]. Of int8, which is what scales [O] say: panels
 * [O / PANEL, I / 4, PANEL, 4] of whole numbers plus 128. bias [O]: or none. */
struct matrix {
    const void *panels;
    const float *scales;
    const element *bias;
    int64_t inputs, outputs;
};

/* For `tile`, which is inlined for each number of rows that it is called with. */
#define BY_ROWS(tile, rows)                                   \
    do {                                                      \
        int64_t row = 0;                                      \
        for (; row + ROWS <= (rows); row += ROWS) tile(ROWS); \
        SOME_ROWS(tile, rows, 8);                             \
        SOME_ROWS(tile, rows, 4);                             \
        SOME_ROWS(tile, rows, 2);                             \
        SOME_ROWS(tile, rows, 1);                             \
    } while (0)
#define SOME_ROWS(tile, rows, some)             \
    if (some < ROWS && row + some <= (rows)) {  \
        tile(some);                             \
        row += some;                            \
    }

#define INLINE __attribute__((always_inline)) static inline

/* Before a loop over a tile's rows: its sums are registers only where the compiler writes the loop out. */
#define EACH_ROW _Pragma("GCC unroll 12")

/* So many bytes ahead a panel is fetched: a processor that fetches by itself ends at each page. */
enum { AHEAD = 4096, LINE = 64 };

INLINE void fetch(const void *at, int bytes) {
    for (int i = 0; i < bytes; i += LINE) __builtin_prefetch((const char *)at + AHEAD + i);
}

/* out [rows, O] of one panel [I, PANEL], of floats where it is `wide`, and floats x [rows, I]. */
INLINE void multiply(const void *panel, const int wide, const float *x, const element *bias, element *out,
                     int64_t inputs, int64_t outputs, const int rows) {
    vec sums[ROWS][2];
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) sums[row][half] = bias ? load(bias + half * LANES) : all(0);
    for (int64_t i = 0; i < inputs; i++) {
        const float *floats = (const float *)panel + i * PANEL;
        const element *elements = (const element *)panel + i * PANEL;
        fetch(wide ? (const void *)floats : elements, PANEL * (wide ? sizeof *floats : sizeof *elements));
        vec first = wide ? load_floats(floats) : load(elements);
        vec second = wide ? load_floats(floats + LANES) : load(elements + LANES);
        for (int row = 0; row < rows; row++) {
            sums[row][0] += first * x[row * inputs + i];
            sums[row][1] += second * x[row * inputs + i];
        }
    }
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) store(out + row * outputs + half * LANES, sums[row][half]);
}

/* Of so many rows a panel is made floats once. */
enum { MANY = 4 * ROWS };

/* x [T, I] by a matrix of floats or elements: out [T, O]. room: for x as floats [T, I], where they are none. */
static void product_wide(const element *x, const struct matrix *matrix, element *out, void *room, int64_t rows) {
    const int64_t inputs = matrix->inputs, outputs = matrix->outputs;
    const element *panels = matrix->panels, *bias = matrix->bias;
#pragma omp parallel
    {
#ifdef BFLOAT16
        float *floats = room;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows * inputs; i += LANES) store_floats(floats + i, load(x + i));
        float *copy = rows >= MANY ? aligned_alloc(LINE, inputs * PANEL * sizeof *copy) : 0;
#else
        (void)room;
        const float *floats = x;
        float *copy = 0;
#endif
#pragma omp for schedule(static)
        for (int64_t at = 0; at < outputs; at += PANEL) {
            const element *panel = panels + at * inputs;
#define TILE(panel, wide, count)                                                                                    \
    multiply(panel, wide, floats + row * inputs, bias ? bias + at : 0, out + row * outputs + at, inputs, outputs, count)
            if (copy) {
                for (int64_t i = 0; i < inputs * PANEL; i += LANES) store_floats(copy + i, load(panel + i));
#define WIDE(count) TILE(copy, 1, count)
                BY_ROWS(WIDE, rows);
            } else {
#define NARROW(count) TILE(panel, 0, count)
                BY_ROWS(NARROW, rows);
            }
        }
        free(copy);
#undef TILE
    }
}

#ifdef __AVX512VNNI__
#include <immintrin.h>

/* One row [I] of x as whole numbers of -127 to 127 that, times the scale that is returned, come nearest to it; `sum` is
 * that of these numbers. */
static inline float rounded(const element *x, int8_t *small, int32_t *sum_of, int64_t inputs) {
    vec top = {0};
    ints none = {0};
    for (int64_t i = 0; i < inputs; i += LANES) {
        vec v = load(x + i);
        none |= v != v;
        top = larger(magnitude(v), top);
    }
    float step = largest(top) / 127;
    step = step > 1e-30f ? step : 1e-30f;
    if (_mm512_reduce_or_epi32((__m512i)none)) step = NAN;
    ints sums = {0};
    for (int64_t i = 0; i < inputs; i += LANES) {
        vec whole = load(x + i) / step + ROUNDING - ROUNDING;
        __m512i numbers = _mm512_cvtps_epi32((__m512)whole);
        _mm_storeu_si128((__m128i *)(small + i), _mm512_cvtepi32_epi8(numbers));
        sums += (ints)numbers;
    }
    *sum_of = _mm512_reduce_add_epi32((__m512i)sums);
    return step;
}

/* sums += weights, unsigned, by numbers, signed, four by four. By its name, for GCC 12 copies the sums of its own function
 * of that name to and fro, some of them by way of memory, which doubles the time. */
INLINE void add_products(__m512i *sums, __m512i weights, __m512i numbers) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(weights), "v"(numbers));
}

/* out [rows, O] of one panel [I / 4, PANEL, 4] of weights, 128 more each, for the instruction takes one side unsigned;
 * sums [rows] of x times 128 is what that makes too much. */
INLINE void multiply_int8(const uint8_t *panel, const int8_t *x, const int32_t *sums_of, const float *scales,
                          const float *steps, const element *bias, element *out, int64_t inputs, int64_t outputs,
                          const int rows) {
    __m512i sums[ROWS][2];
    EACH_ROW
    for (int row = 0; row < rows; row++) sums[row][0] = sums[row][1] = _mm512_set1_epi32(-128 * sums_of[row]);
    for (int64_t i = 0; i < inputs; i += 4) {
        const uint8_t *at = panel + i * PANEL;
        fetch(at, 4 * PANEL);
        __m512i first = _mm512_loadu_si512(at), second = _mm512_loadu_si512(at + 64);
        EACH_ROW
        for (int row = 0; row < rows; row++) {
            int32_t four;
            memcpy(&four, x + row * inputs + i, sizeof four);
            __m512i numbers = _mm512_set1_epi32(four);
            add_products(sums[row], first, numbers);
            add_products(sums[row] + 1, second, numbers);
        }
    }
    EACH_ROW
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) {
            vec y = __builtin_convertvector((ints)sums[row][half], vec) * load_floats(scales + half * LANES) * steps[row];
            store(out + row * outputs + half * LANES, bias ? y + load(bias + half * LANES) : y);
        }
}

/* x [T, I] by a matrix of int8: out [T, O]. x is rounded to int8 row by row, the sums are exact. room: for x in int8
 * [T, I], then each row's sum and step. */
static void product_int8(const element *x, const struct matrix *matrix, element *out, int8_t *small, int64_t rows) {
    const int64_t inputs = matrix->inputs, outputs = matrix->outputs;
    const uint8_t *panels = matrix->panels;
    const float *scales = matrix->scales;
    const element *bias = matrix->bias;
    int32_t *sums_of = (int32_t *)(small + rows * inputs);
    float *steps = (float *)(sums_of + rows);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++)
            steps[row] = rounded(x + row * inputs, small + row * inputs, sums_of + row, inputs);
#pragma omp for schedule(static)
        for (int64_t at = 0; at < outputs; at += PANEL) {
#define TILE(count)                                                                                                \
    multiply_int8(panels + at * inputs, small + row * inputs, sums_of + row, scales + at, steps + row,             \
                  bias ? bias + at : 0, out + row * outputs + at, inputs, outputs, count)
            BY_ROWS(TILE, rows);
#undef TILE
        }
    }
}

const int knows_int8 = 1;
#endif

#if defined BFLOAT16 || defined __AVX512F__
/* Where it is worth its while: of floats torch has as good ones for vectors of fewer numbers. */
const int knows_wide = 1;
#endif

/* x [T, I] by a matrix, and its bias: out [T, O]. room: T * (4 I + 8) bytes. */
void product(const element *x, const struct matrix *matrix, element *out, void *room, int64_t rows) {
#ifdef __AVX512VNNI__
    if (matrix->scales) {
        product_int8(x, matrix, out, room, rows);
        return;
    }
#endif
    product_wide(x, matrix, out, room, rows);
}

enum { MOST_DIM = 256, MOST_QUERIES = 48, KEYS = 64 };

/* One head, made floats: normed where there is a weight [D], and rotated where there are turns, pairs of neighbours by a
 * (cosine, sine) each [D / 2, 2]. */
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
        for (int64_t i = 0; i < dim; i += LANES) { /* a norm's results are of the model's type, as the reference's are */
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

/* qkv [T, (Q + 2K) D]: queries and keys normed and rotated in place, keys and values put into the pool [2K, slots, D] at
 * slot[t]. q_norm, k_norm [D]: both or none. turns [T, D / 2, 2], or none. */
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

/* A layer's part of the cache and of the model: its pool is [2K, slots, D], keys' heads first. */
struct layer {
    element *pool;
    int64_t slots, block_size, kv_heads, group, dim;
    float scale;
};

/* The work list: item i lets tokens members[m] see keys seen[m].first .. seen[m].end - 1 of its blocks, for m from
 * first_member on; `keys` is the largest end. Its results go to places from `place` on, one for each token. */
struct item {
    int64_t first_member, width, first_block, keys, place;
};

struct seen {
    int64_t first, end;
};

/* The list, and what its items give for their tokens: sums of values by their weights [places, Q, D], the weights' sums
 * and the largest scores, which were taken off before the exponential, [places, Q] each. A token's own are those at
 * places[first_place[t]] .. places[first_place[t + 1] - 1]. */
struct work {
    int64_t count;
    const struct item *items;
    const int64_t *members;
    const struct seen *seen;
    const int64_t *blocks, *first_place, *places;
    float *values, *weights, *tops;
};

static const float NEVER = -1e30f; /* the score of a key that a row does not see */

/* Some keys' scores against up to four queries [4, D], one after the other: scores [keys, 4]. */
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

/* The same against up to three vectors of queries at once, given as [D, stride]: scores [keys, stride]. */
INLINE void score_lanes(const float *q, const float *const *k, int64_t keys, const int64_t dim, const int vectors,
                        float *scores) {
    enum { AT_ONCE = 8 };
    const int64_t stride = vectors * LANES;
    int64_t key = 0;
    for (; key + AT_ONCE <= keys; key += AT_ONCE) {
        const float *first = k[key];
        int together = 1; /* one behind the other, in a block or in some that happen to follow */
        for (int j = 1; j < AT_ONCE; j++) together &= k[key + j] == first + j * dim;
        if (!together) break;
        vec dots[AT_ONCE][MOST_QUERIES / LANES] = {{{0}}};
        for (int64_t i = 0; i < dim; i++) {
            vec mine[MOST_QUERIES / LANES];
            for (int g = 0; g < vectors; g++) mine[g] = load_floats(q + i * stride + g * LANES);
            for (int j = 0; j < AT_ONCE; j++) {
                vec number = all(first[j * dim + i]);
                for (int g = 0; g < vectors; g++) dots[j][g] += mine[g] * number;
            }
        }
        for (int j = 0; j < AT_ONCE; j++)
            for (int g = 0; g < vectors; g++) store_floats(scores + (key + j) * stride + g * LANES, dots[j][g]);
    }
    for (; key < keys; key++)
        for (int g = 0; g < vectors; g++) {
            vec dot = {0};
            for (int64_t i = 0; i < dim; i++) dot += load_floats(q + i * stride + g * LANES) * k[key][i];
            store_floats(scores + key * stride + g * LANES, dot);
        }
}

/* out [4, D] gets weights [keys, stride] times values, floats where they are `wide`, of D from `at` on: four queries, and `count` vectors, stay in
 * registers. */
INLINE void weigh(const float *weights, int64_t stride, const void *const *v, const int wide, int64_t at, int64_t keys,
                  int64_t dim, float *out, const int count) {
    vec sums[4][4];
    for (int m = 0; m < 4; m++)
        for (int c = 0; c < count; c++) sums[m][c] = load_floats(out + m * dim + at + c * LANES);
    for (int64_t key = 0; key < keys; key++)
        for (int c = 0; c < count; c++) {
            int64_t i = at + c * LANES;
            vec value = wide ? load_floats((const float *)v[key] + i) : load((const element *)v[key] + i);
            for (int m = 0; m < 4; m++) sums[m][c] += value * weights[key * stride + m];
        }
    for (int m = 0; m < 4; m++)
        for (int c = 0; c < count; c++) store_floats(out + m * dim + at + c * LANES, sums[m][c]);
}

/* One item and key head: q [T, ...] of a token's stride, which begins with its queries' heads.
 *
 * Keys come KEYS at a time; the largest score so far is taken off all, and what was summed up under a smaller one is
 * made less (the online softmax of Milakov and Gimelshein, 2018, as in FlashAttention). Scores lie [keys, stride], where
 * a stride of 4 is for up to four queries, and others are whole vectors of queries. */
static void attend(const struct layer *layer, const struct work *work, const struct item *item, const element *q,
                   int64_t q_stride, int64_t head) {
    const int64_t dim = layer->dim, group = layer->group, queries = item->width * group, size = layer->block_size;
    const int64_t stride = queries <= 4 ? 4 : (queries + LANES - 1) / LANES * LANES;
    const int64_t vectors = stride < LANES ? 1 : stride / LANES;
    const int64_t *members = work->members;
    const struct seen *seen = work->seen;
    float q_mine[MOST_QUERIES * MOST_DIM], out[MOST_QUERIES * MOST_DIM], scores[KEYS * MOST_QUERIES];
    vec top[MOST_QUERIES / LANES], total[MOST_QUERIES / LANES];
    const element *keys = layer->pool + head * layer->slots * dim;
    const element *values = layer->pool + (layer->kv_heads + head) * layer->slots * dim;

    memset(q_mine, 0, stride * dim * sizeof *q_mine);
    memset(out, 0, stride * dim * sizeof *out);
    int64_t first = 0, end = item->keys; /* the keys between which all tokens see all */
    for (int64_t m = 0; m < queries; m++) {
        int64_t member = item->first_member + m / group;
        const element *from = q + members[member] * q_stride + (head * group + m % group) * dim;
        if (seen[member].first > first) first = seen[member].first;
        if (seen[member].end < end) end = seen[member].end;
        for (int64_t i = 0; i < dim; i += LANES) {
            vec scaled = load(from + i) * layer->scale;
            if (stride == 4)
                store_floats(q_mine + m * dim + i, scaled);
            else
                for (int lane = 0; lane < LANES; lane++) q_mine[(i + lane) * stride + m] = scaled[lane];
        }
    }
    for (int64_t g = 0; g < vectors; g++) {
        top[g] = all(NEVER);
        total[g] = all(0);
    }
    for (int64_t begin = 0; begin < item->keys; begin += KEYS) {
        const int64_t count = item->keys - begin < KEYS ? item->keys - begin : KEYS;
        const element *k[KEYS], *v[KEYS];
        const float *kf[KEYS], *vf[KEYS]; /* the same as floats, for many queries */
        int64_t block = item->first_block + begin / size, inside = begin % size;
        for (int64_t key = 0; key < count; key++) {
            int64_t slot = work->blocks[block] * size + inside;
            k[key] = keys + slot * dim;
            v[key] = values + slot * dim;
            /* On their way while scores are computed; those of short items come from memory, and one after the other. */
            for (int64_t i = 0; i < dim; i += 64 / (int64_t)sizeof *values) {
                __builtin_prefetch(k[key] + i);
                __builtin_prefetch(v[key] + i);
            }
            if (++inside == size) {
                inside = 0;
                block++;
            }
        }
        if (stride == 4) {
            if (dim == 64) /* the usual width of small heads: the compiler keeps the queries in registers */
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
#define SCORE(dim, vectors) score_lanes(q_mine, kf, count, dim, vectors, scores)
#define SCORE_USUAL(vectors) /* widths of heads, for which the compiler knows all addresses */ \
    if (dim == 64)                                                                             \
        SCORE(64, vectors);                                                                    \
    else if (dim == 128)                                                                       \
        SCORE(128, vectors);                                                                   \
    else                                                                                       \
        SCORE(dim, vectors)
            if (vectors == 1) {
                SCORE(dim, 1);
            } else if (vectors == 2) {
                SCORE_USUAL(2);
            } else {
                SCORE_USUAL(3);
            }
        }
        if (begin < first || begin + count > end)
            for (int64_t m = 0; m < queries; m++) {
                struct seen mine = seen[item->first_member + m / group];
                for (int64_t key = 0; key < count; key++)
                    if (begin + key < mine.first || begin + key >= mine.end) scores[key * stride + m] = NEVER;
            }
        int64_t last = (count * stride + LANES - 1) / LANES; /* vectors of scores */
        for (int64_t i = count * stride; i < last * LANES; i++) scores[i] = NEVER;

        vec now[MOST_QUERIES / LANES], sums[MOST_QUERIES / LANES];
        for (int64_t g = 0; g < vectors; g++) {
            now[g] = top[g];
            sums[g] = all(0);
            for (int64_t i = g; i < last; i += vectors) now[g] = larger(now[g], load_floats(scores + i * LANES));
            if (stride == 4) /* four keys' scores lie in a vector */
                for (int lane = 0; lane < 4; lane++) {
                    float most = NEVER;
                    for (int i = lane; i < LANES; i += 4) most = now[g][i] > most ? now[g][i] : most;
                    for (int i = lane; i < LANES; i += 4) now[g][i] = most;
                }
            for (int64_t i = g; i < last; i += vectors) {
                vec score = load_floats(scores + i * LANES);
                ints there = ~(score <= NEVER);
                vec weight = (vec)((ints)exponential(score - now[g]) & there);
                sums[g] += weight;
                store_floats(scores + i * LANES, weight);
            }
            vec less = exponential(top[g] - now[g]);
            total[g] = total[g] * less + sums[g];
            if (begin)
                for (int lane = 0; lane < (stride == 4 ? 4 : LANES); lane++)
                    if (less[lane] != 1.0f)
                        for (int64_t i = 0; i < dim; i += LANES) {
                            float *at = out + (g * LANES + lane) * dim + i;
                            store_floats(at, load_floats(at) * less[lane]);
                        }
            top[g] = now[g];
        }
        for (int64_t m = 0; m < queries; m += 4) {
            int64_t i = 0;
#define WEIGH(v, wide, vectors) \
    weigh(scores + m, stride, (const void *const *)v, wide, i, count, dim, out + m * dim, vectors)
            if (stride == 4) {
                for (; i + 4 * LANES <= dim; i += 4 * LANES) WEIGH(v, 0, 4);
                for (; i < dim; i += LANES) WEIGH(v, 0, 1);
            } else {
                for (; i + 4 * LANES <= dim; i += 4 * LANES) WEIGH(vf, 1, 4);
                for (; i < dim; i += LANES) WEIGH(vf, 1, 1);
            }
#undef WEIGH
        }
    }
    for (int64_t m = 0; m < queries; m++) {
        int64_t place = ((item->place + m / group) * layer->kv_heads + head) * group + m % group;
        memcpy(work->values + place * dim, out + m * dim, dim * sizeof *out);
        work->tops[place] = top[m / LANES][m % LANES];
        float weight = total[m / LANES][m % LANES];
        if (stride == 4) weight = total[0][m] + total[0][m + 4] + total[0][m + 8] + total[0][m + 12];
        work->weights[place] = weight;
    }
}

/* Attention of all tokens over the paged cache: q and out [T, Q, D], q of a token's stride. */
void attention(const struct layer *layer, const struct work *work, const element *q, int64_t q_stride, element *out,
               int64_t tokens) {
    const int64_t dim = layer->dim, heads = layer->kv_heads * layer->group;
#pragma omp parallel
    {
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < work->count * layer->kv_heads; task++)
            attend(layer, work, work->items + task / layer->kv_heads, q, q_stride, task % layer->kv_heads);
#pragma omp for schedule(static)
        for (int64_t token = 0; token < tokens; token++)
            for (int64_t head = 0; head < heads; head++) {
                const int64_t *mine = work->places + work->first_place[token];
                const int64_t several = work->first_place[token + 1] - work->first_place[token];
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
                    store(out + (token * heads + head) * dim + i, joined / total);
                }
            }
    }
}

/* All that one layer of a decoder computes with. q_norm, k_norm: both or none; turned: whether heads are rotated. */
struct block {
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm;
    struct matrix qkv, output, gate_up, down;
    const struct layer *layer;
    int64_t turned;
};

/* Room for a step: normed and added [T, H], wide for the larger of [T, (Q + 2K) D] and [T, 2I], narrow for the larger of
 * [T, Q D] and [T, I], `more` for products. */
struct room {
    element *normed, *added, *wide, *narrow;
    void *more;
};

/* Seconds of products, of attention and of the rest, added up. */
struct spent {
    double products, attention, rest;
};

/* Adds what went by since `since` to a sum, and gives the time that it is. */
static double lap(double *sum, double since) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = now.tv_sec + now.tv_nsec * 1e-9;
    *sum += seconds - since;
    return seconds;
}

/* x [T, H] float32 through some layers, in place, as one call: work[i] is the i-th layer's. turns, slots: as for
 * rotate_store. */
void layers(const struct block *blocks, const struct work *const *work, int64_t count, float eps, float *x,
            const float *turns, const int64_t *slots, const struct room *room, int64_t tokens, struct spent *spent) {
    const int64_t hidden = blocks->output.outputs;
    const element *added = 0;
    double ignored = 0, now = lap(&ignored, 0);
    for (int64_t i = 0; i < count; i++) {
        const struct block *block = blocks + i;
        const struct layer *layer = block->layer;
        norm(x, added, block->attention_norm, eps, room->normed, tokens, hidden);
        now = lap(&spent->rest, now);
        product(room->normed, &block->qkv, room->wide, room->more, tokens);
        now = lap(&spent->products, now);
        rotate_store(room->wide, block->q_norm, block->k_norm, eps, block->turned ? turns : 0, slots, layer->pool,
                     layer->slots, tokens, layer->kv_heads * layer->group, layer->kv_heads, layer->dim);
        now = lap(&spent->rest, now);
        attention(layer, work[i], room->wide, block->qkv.outputs, room->narrow, tokens);
        now = lap(&spent->attention, now);
        product(room->narrow, &block->output, room->added, room->more, tokens);
        now = lap(&spent->products, now);
        norm(x, room->added, block->mlp_norm, eps, room->normed, tokens, hidden);
        now = lap(&spent->rest, now);
        product(room->normed, &block->gate_up, room->wide, room->more, tokens);
        now = lap(&spent->products, now);
        silu_mul(room->wide, room->narrow, tokens, block->down.inputs);
        now = lap(&spent->rest, now);
        product(room->narrow, &block->down, room->added, room->more, tokens);
        now = lap(&spent->products, now);
        added = room->added;
    }
    for (int64_t i = 0; i < tokens * hidden; i += LANES) store_floats(x + i, load_floats(x + i) + load(added + i));
    lap(&spent->rest, now);
}

/* Philox 4x32-10 of one counter and key, both changed: the counter into four random words (kernels/philox.py). */
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

/* Standard exponential variates of a stream, [N, count]: one row for each seed and position [N]. */
void exponentials(const int64_t *seeds, const int64_t *positions, double *out, int64_t rows, int64_t count,
                  int64_t stream) {
#pragma omp parallel for schedule(static) if (rows * count >= WORTH_THREADS / 16)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t lane = 0; lane * 4 < count; lane++) {
            uint64_t seed = seeds[row], position = positions[row];
            uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)lane, (uint32_t)stream};
            uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
            philox(counter, key);
            for (int64_t i = lane * 4; i < count && i < lane * 4 + 4; i++)
                out[row * count + i] = -log((counter[i - lane * 4] + 0.5) * 0x1p-32);
        }
}
