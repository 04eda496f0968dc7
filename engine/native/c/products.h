/* Products. A matrix [O, I] lies in panels of PANEL outputs, in each of which what one input is multiplied by lies
 * together; ROWS rows of inputs by one panel is what the registers hold. So each weight is read once for so many rows,
 * and every sum runs along the inputs in their order, however many rows there are. */

enum { PANEL = 2 * LANES, ROWS = REGISTERS == 32 ? 12 : 6 };
const int panel_outputs = PANEL;

/* Of what the elements are: panels [O / PANEL, I, PANEL], or [O / PANEL, I / 2, PANEL, 2] where elements_paired. Of
 * int8, which is what scales [O] say: panels [O / PANEL, I / TOGETHER, PANEL, TOGETHER]. bias [O]: or none. */
struct matrix {
    const void *panels;
    const float *scales;
    const element *bias;
    int64_t inputs, outputs;
};

/* What is left is two tiles of four rather than one of six and one of two, which would wait for its own sums. */
#define UNEVEN(left) (ROWS == 6 && (left) == 8)

/* For `tile`, which is inlined for each number of rows that it is called with. */
#define BY_ROWS(tile, rows)                                                            \
    do {                                                                               \
        int64_t row = 0;                                                               \
        for (; row + ROWS <= (rows) && !UNEVEN((rows) - row); row += ROWS) tile(ROWS); \
        SOME_ROWS(tile, rows, 8);                                                      \
        SOME_ROWS(tile, rows, 4);                                                      \
        SOME_ROWS(tile, rows, 2);                                                      \
        SOME_ROWS(tile, rows, 1);                                                      \
    } while (0)
#define SOME_ROWS(tile, rows, some) \
    for (; some < ROWS && row + some <= (rows); row += some) tile(some)

/* Before a loop over a tile's rows: its sums are registers only where the compiler writes the loop out. */
#define EACH_ROW _Pragma("GCC unroll 12")

/* So many bytes ahead a panel is fetched: a processor that fetches by itself ends at each page. */
enum { AHEAD = 4096, LINE = 64 };

INLINE void fetch(const void *at, int bytes) {
    for (int i = 0; i < bytes; i += LINE) __builtin_prefetch((const char *)at + AHEAD + i);
}

/* Whether bfloat16 is multiplied by the processor itself, which adds up two products in one instruction. Where it has tiles
 * of them (AMX), torch's products, which take those, stay. */
#if defined BFLOAT16 && defined __AVX512BF16__ && !defined __AMX_BF16__
const int elements_paired = 1;

/* By its name, as that of add_products below. */
INLINE vec add_pairs(vec sums, ints weights, ints numbers) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(numbers));
    return sums;
}

/* out [rows, O] of one panel [I / 2, PANEL, 2] and x [rows, I]. */
INLINE void multiply_pairs(const element *panel, const element *x, const element *bias, element *out, int64_t inputs,
                           int64_t outputs, const int rows) {
    vec sums[ROWS][2];
    EACH_ROW
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) sums[row][half] = bias ? load(bias + half * LANES) : all(0);
    for (int64_t i = 0; i < inputs; i += 2) {
        const element *at = panel + i * PANEL;
        fetch(at, 2 * PANEL * sizeof *at);
        ints first, second;
        memcpy(&first, at, sizeof first);
        memcpy(&second, at + 2 * LANES, sizeof second);
        EACH_ROW
        for (int row = 0; row < rows; row++) {
            int32_t pair;
            memcpy(&pair, x + row * inputs + i, sizeof pair);
            ints numbers = pair - (ints){0};
            sums[row][0] = add_pairs(sums[row][0], first, numbers);
            sums[row][1] = add_pairs(sums[row][1], second, numbers);
        }
    }
    EACH_ROW
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) store(out + row * outputs + half * LANES, sums[row][half]);
}

/* x [T, I] by a matrix of pairs: out [T, O]. room: none is needed. */
static void product_elements(const element *x, const struct matrix *matrix, element *out, void *room, int64_t rows) {
    (void)room;
    const int64_t inputs = matrix->inputs, outputs = matrix->outputs;
    const element *panels = matrix->panels, *bias = matrix->bias;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < outputs; at += PANEL) {
#define TILE(count)                                                                                             \
    multiply_pairs(panels + at * inputs, x + row * inputs, bias ? bias + at : 0, out + row * outputs + at, inputs, \
                   outputs, count)
        BY_ROWS(TILE, rows);
#undef TILE
    }
}
#else
const int elements_paired = 0;

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
static void product_elements(const element *x, const struct matrix *matrix, element *out, void *room, int64_t rows) {
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
#endif

#ifdef __AVX2__
#include <immintrin.h>

/* So many inputs are multiplied by their weights and added up in one instruction; they are `small`. */
#ifdef __AVX512VNNI__
enum { TOGETHER = 4, ADDED = 128 }; /* to weights, for the instruction takes one side unsigned */
typedef int8_t small;

INLINE ints weights_at(const int8_t *at) { return (ints)_mm512_loadu_si512(at); }

/* By its name, for GCC 12 copies the sums of its own function of that name to and fro, some of them by way of memory,
 * which doubles the time. */
INLINE ints add_products(ints sums, ints weights, ints numbers) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(numbers));
    return sums;
}
#else
enum { TOGETHER = 2, ADDED = 0 }; /* what takes four adds up two in 16 bits */
typedef int16_t small;

#ifdef __AVX512BW__
INLINE ints weights_at(const int8_t *at) { return (ints)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)at)); }
INLINE ints pairs(ints weights, ints numbers) { return (ints)_mm512_madd_epi16((__m512i)weights, (__m512i)numbers); }
#else
INLINE ints weights_at(const int8_t *at) { return (ints)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)at)); }
INLINE ints pairs(ints weights, ints numbers) { return (ints)_mm256_madd_epi16((__m256i)weights, (__m256i)numbers); }
#endif
INLINE ints add_products(ints sums, ints weights, ints numbers) { return sums + pairs(weights, numbers); }
#endif
typedef small smalls __attribute__((vector_size(LANES * sizeof(small))));
typedef small smalls_at __attribute__((vector_size(LANES * sizeof(small)), aligned(sizeof(small)), may_alias));
const int inputs_together = TOGETHER, weights_added = ADDED;

/* One row [I] of x as whole numbers of -127 to 127 that, times the scale that is returned, come nearest to it;
 * `sum_of` is that of these numbers. */
static inline float rounded(const element *x, small *numbers, int32_t *sum_of, int64_t inputs) {
    vec top = {0};
    ints none = {0}, sums = {0};
    for (int64_t i = 0; i < inputs; i += LANES) {
        vec v = load(x + i);
        none |= v != v;
        top = larger(magnitude(v), top);
    }
    float step = largest(top) / 127;
    step = step > 1e-30f ? step : 1e-30f;
    for (int i = 0; i < LANES; i++)
        if (none[i]) step = NAN;
    for (int64_t i = 0; i < inputs; i += LANES) {
        ints whole = __builtin_convertvector(load(x + i) / step + ROUNDING - ROUNDING, ints);
        *(smalls_at *)(numbers + i) = __builtin_convertvector(whole, smalls);
        sums += whole;
    }
    *sum_of = 0;
    for (int i = 0; i < LANES; i++) *sum_of += sums[i];
    return step;
}

/* out [rows, O] of one panel [I / TOGETHER, PANEL, TOGETHER] of weights; sums_of [rows]: of x, each of which was
 * multiplied by ADDED too much. */
INLINE void multiply_int8(const int8_t *panel, const small *x, const int32_t *sums_of, const float *scales,
                          const float *steps, const element *bias, element *out, int64_t inputs, int64_t outputs,
                          const int rows) {
    ints sums[ROWS][2];
    EACH_ROW
    for (int row = 0; row < rows; row++) sums[row][0] = sums[row][1] = -ADDED * sums_of[row] - (ints){0};
    for (int64_t i = 0; i < inputs; i += TOGETHER) {
        const int8_t *at = panel + i * PANEL;
        fetch(at, TOGETHER * PANEL);
        ints first = weights_at(at), second = weights_at(at + TOGETHER * LANES);
        EACH_ROW
        for (int row = 0; row < rows; row++) {
            int32_t some;
            memcpy(&some, x + row * inputs + i, sizeof some);
            ints numbers = some - (ints){0};
            sums[row][0] = add_products(sums[row][0], first, numbers);
            sums[row][1] = add_products(sums[row][1], second, numbers);
        }
    }
    EACH_ROW
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) {
            vec y = __builtin_convertvector(sums[row][half], vec) * load_floats(scales + half * LANES) * steps[row];
            store(out + row * outputs + half * LANES, bias ? y + load(bias + half * LANES) : y);
        }
}

/* x [T, I] by a matrix of int8: out [T, O]. x is rounded to int8 row by row, the sums are exact. room: for x made
 * small [T, I], then each row's sum and step. */
static void product_int8(const element *x, const struct matrix *matrix, element *out, void *room, int64_t rows) {
    const int64_t inputs = matrix->inputs, outputs = matrix->outputs;
    const int8_t *panels = matrix->panels;
    const float *scales = matrix->scales;
    const element *bias = matrix->bias;
    small *numbers = room;
    int32_t *sums_of = (int32_t *)(numbers + rows * inputs);
    float *steps = (float *)(sums_of + rows);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++)
            steps[row] = rounded(x + row * inputs, numbers + row * inputs, sums_of + row, inputs);
#pragma omp for schedule(static)
        for (int64_t at = 0; at < outputs; at += PANEL) {
#define TILE(count)                                                                                                \
    multiply_int8(panels + at * inputs, numbers + row * inputs, sums_of + row, scales + at, steps + row,             \
                  bias ? bias + at : 0, out + row * outputs + at, inputs, outputs, count)
            BY_ROWS(TILE, rows);
#undef TILE
        }
    }
}

#else
const int inputs_together = 0, weights_added = 0;
#endif

/* Where it is worth its while: of floats torch has as good ones for vectors of fewer numbers. */
#if defined BFLOAT16 || defined __AVX2__
const int knows_wide = 1;
#else
const int knows_wide = 0;
#endif

/* x [T, I] by a matrix, and its bias: out [T, O]. room: T * (4 I + 8) bytes. */
void product(const element *x, const struct matrix *matrix, element *out, void *room, int64_t rows) {
#ifdef __AVX2__
    if (matrix->scales) {
        product_int8(x, matrix, out, room, rows);
        return;
    }
#endif
    product_elements(x, matrix, out, room, rows);
}
