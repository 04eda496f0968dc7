/* Products of int8. */

#ifdef __AVX2__
/* TOGETHER inputs are multiplied by their weights and added in one instruction; their type is `small`. */
#ifdef __AVX512VNNI__
enum { TOGETHER = 4, ADDED = 128 }; /* added to weights, because the instruction takes one operand unsigned */
typedef int8_t small;

INLINE ints weights_at(const int8_t *at) { return (ints)_mm512_loadu_si512(at); }

/* In assembly: with its intrinsic, GCC 12 copies the sums back and forth, partly through memory, which doubles the
 * time. */
INLINE ints add_products(ints sums, ints weights, ints numbers) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(numbers));
    return sums;
}
#else
enum { TOGETHER = 2, ADDED = 0 }; /* the instruction for four inputs adds two products in 16 bits */
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

/* Convert one row [I] of x to integers from -127 to 127 that, times the returned scale, are closest to it; `sum_of`
 * becomes the sum of these integers. */
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

/* Write a vector of outputs of one row. */
INLINE void store_scaled(ints sums, const float *scales, float step, const element *bias, element *out) {
    vec y = __builtin_convertvector(sums, vec) * load_floats(scales) * step;
    ROUNDED(y);
    store(out, bias ? y + load(bias) : y);
}

/* Compute out [rows, O] for one panel [I / TOGETHER, PANEL, TOGETHER] of weights. sums_of [rows]: the sums of x, which
 * correct for the ADDED in each weight. */
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
        for (int half = 0; half < 2; half++)
            store_scaled(sums[row][half], scales + half * LANES, steps[row], bias ? bias + half * LANES : 0,
                         out + row * outputs + half * LANES);
}

/* Where `scratch` holds x as `small` [T, I], the sum of each row, and its step. */
INLINE small *numbers_of(const struct multiplied *of) { return of->scratch; }
INLINE int32_t *sums_in(const struct multiplied *of) {
    return (int32_t *)(numbers_of(of) + of->rows * of->matrix->inputs);
}
INLINE float *steps_of(const struct multiplied *of) { return (float *)(sums_in(of) + of->rows); }

static void round_some(const void *what, int64_t begin, int64_t end) {
    const struct multiplied *of = what;
    const int64_t inputs = of->matrix->inputs;
    for (int64_t row = begin; row < end; row++)
        steps_of(of)[row] = rounded(of->x + row * inputs, numbers_of(of) + row * inputs, sums_in(of) + row, inputs);
}

#ifdef AMX
_Static_assert(TOGETHER == 4 && ADDED == 128 && sizeof(small) == 1, "a panel is in the tiles' order");

/* Write out [rows, O] for one panel from its sums over the whole steps, after adding the other inputs. */
static void finish_int8(const int8_t *panel, const small *x, int32_t (*sums)[PANEL], const int32_t *sums_of,
                        const float *scales, const float *steps, const element *bias, element *out, int64_t inputs,
                        int64_t outputs, int64_t rows) {
    for (int64_t row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) {
            ints whole = load_ints(sums[row] + half * LANES) - ADDED * sums_of[row];
            for (int64_t i = inputs / TILE_BYTES * TILE_BYTES; i < inputs; i += TOGETHER) {
                int32_t some;
                memcpy(&some, x + row * inputs + i, sizeof some);
                whole = add_products(whole, weights_at(panel + i * PANEL + half * TOGETHER * LANES), some - (ints){0});
            }
            store_scaled(whole, scales + half * LANES, steps[row], bias ? bias + half * LANES : 0,
                         out + row * outputs + half * LANES);
        }
}

static void multiply_int8_amx(const void *what, int64_t begin, int64_t end) {
    const struct multiplied *of = what;
    const struct matrix *matrix = of->matrix;
    const int64_t rows = of->rows, inputs = matrix->inputs, outputs = matrix->outputs;
    const element *bias = matrix->bias;
    const int64_t most = rows_together(inputs);
    _Alignas(64) int32_t sums[MOST_AMX_ROWS][PANEL];
    for (int64_t row = 0; row < rows; row += most)
        for (int64_t at = begin * PANEL; at < end * PANEL; at += PANEL) {
            const int64_t some = rows - row < most ? rows - row : most;
            const int8_t *panel = (const int8_t *)matrix->panels + at * inputs;
            const small *x = numbers_of(of) + row * inputs;
            amx_product((const char *)panel, (const char *)x, inputs, some, 1, sums);
            finish_int8(panel, x, sums, sums_in(of) + row, matrix->scales + at, steps_of(of) + row,
                        bias ? bias + at : 0, of->out + row * outputs + at, inputs, outputs, some);
        }
}
#endif

static void multiply_int8_some(const void *what, int64_t begin, int64_t end) {
    const struct multiplied *of = what;
    const struct matrix *matrix = of->matrix;
    const int64_t rows = of->rows, inputs = matrix->inputs, outputs = matrix->outputs;
    const int8_t *panels = matrix->panels;
    const element *bias = matrix->bias;
    const small *numbers = numbers_of(of);
    const int32_t *sums_of = sums_in(of);
    const float *steps = steps_of(of);
    for (int64_t at = begin * PANEL; at < end * PANEL; at += PANEL) {
#define TILE(count)                                                                                                  \
    multiply_int8(panels + at * inputs, numbers + row * inputs, sums_of + row, matrix->scales + at, steps + row,       \
                  bias ? bias + at : 0, of->out + row * outputs + at, inputs, outputs, count)
        BY_ROWS(TILE, rows);
#undef TILE
    }
}

/* x [T, I] times a matrix of int8: out [T, O]. x is rounded to int8 row by row; the sums are exact. scratch: for x as
 * `small` [T, I], then the sum and the step of each row. */
static void product_int8(const element *x, const struct matrix *matrix, element *out, void *scratch, int64_t rows) {
    const struct multiplied of = {x, matrix, out, rows, 0, scratch};
    share_rows(round_some, &of, rows, matrix->inputs, WORTH_THREADS / 4);
#ifdef AMX
    share_panels(amx_granted ? multiply_int8_amx : multiply_int8_some, &of);
#else
    share_panels(multiply_int8_some, &of);
#endif
}

#else
const int inputs_together = 0, weights_added = 0;
#endif

