/* Products. A matrix [O, I] is stored in panels of PANEL outputs; in a panel, the weights of one input are contiguous.
 * Registers hold the sums of ROWS rows of inputs times one panel. So each weight is read once for that many rows, and
 * every sum runs over the inputs in their order, whatever the number of rows. */

enum { PANEL = 2 * LANES, ROWS = REGISTERS == 32 ? 12 : 6, MOST_ROWS = ROWS < 8 ? 8 : ROWS };
const int panel_outputs = PANEL;

/* The contents of a matrix, in panels [O / PANEL, ...].
 * ELEMENTS: [I, PANEL], or [I / 2, PANEL, 2] if elements_paired. HALVES: the same in bfloat16, exact as floats.
 * INT8: [I / TOGETHER, PANEL, TOGETHER], times scales [O]; x is rounded to int8.
 * NIBBLES and BYTES: values that are each multiplied by a scale and increased by an offset, which `group` inputs share:
 * [I / group] of scales [PANEL] and offsets [PANEL], floats, and values of eight or four inputs in a word, the first
 * one lowest: [group / 8, PANEL] or [group / 4, PANEL].
 * FLOATS: a panel of the other kinds, converted when that pays. */
enum kind { ELEMENTS, HALVES, INT8, NIBBLES, BYTES, FLOATS };
enum { NIBBLES_GROUP = 32 }; /* in every four-bit format */

/* bias [O], or none. */
struct matrix {
    const void *panels;
    const float *scales;
    const element *bias;
    int64_t inputs, outputs, kind, group;
};

/* Call `tile`, which is inlined for each number of rows, until all rows are done. With up to six rows per tile, the
 * tiles are as few and as equal as possible: a tile of two or three rows would wait for its own sums. With up to
 * twelve, the largest tiles come first. */
#define BY_ROWS(tile, rows)                                                      \
    do {                                                                         \
        int64_t row = 0;                                                         \
        for (int64_t tiles = ((rows) + 5) / 6; ROWS == 6 && tiles; tiles--) {    \
            const int64_t some = ((rows) - row + tiles - 1) / tiles;             \
            ROWS_OF(tile, some, 6);                                              \
            ROWS_OF(tile, some, 5);                                              \
            ROWS_OF(tile, some, 4);                                              \
            ROWS_OF(tile, some, 3);                                              \
            ROWS_OF(tile, some, 2);                                              \
            ROWS_OF(tile, some, 1);                                              \
            row += some;                                                         \
        }                                                                        \
        SOME_ROWS(tile, rows, 12);                                               \
        SOME_ROWS(tile, rows, 8);                                                \
        SOME_ROWS(tile, rows, 4);                                                \
        SOME_ROWS(tile, rows, 2);                                                \
        SOME_ROWS(tile, rows, 1);                                                \
    } while (0)
#define ROWS_OF(tile, some, count) \
    if (some == count) tile(count)
#define SOME_ROWS(tile, rows, some) \
    for (; ROWS == 12 && row + some <= (rows); row += some) tile(some)

/* x [rows, I] times a matrix: out [rows, O]. floats: x as floats, if these are multiplied. */
struct multiplied {
    const element *x;
    const struct matrix *matrix;
    element *out;
    int64_t rows;
    const float *floats;
    void *scratch;
};

static void share_panels(doing doit, const struct multiplied *of) {
    const int64_t panels = of->matrix->outputs / PANEL;
    share(doit, of, panels, 1, panels);
}

/* Before a loop over a tile's rows: its sums are in registers only if the compiler unrolls the loop. */
#define EACH_ROW _Pragma("GCC unroll 12")

/* A panel is prefetched that many bytes ahead: the processor's own prefetching ends at each page. */
enum { AHEAD = 4096, LINE = 64 };

INLINE void fetch(const void *at, int bytes) {
    for (int i = 0; i < bytes; i += LINE) __builtin_prefetch((const char *)at + AHEAD + i);
}

/* Whether the processor multiplies bfloat16 itself and adds two products in one instruction. If it has AMX tiles for
 * bfloat16, torch's products, which use them, are kept. */
#if defined PAIRS && !defined __AMX_BF16__
const int elements_paired = 1, knows_narrow = 0;

/* Compute out [rows, O] for one panel [I / 2, PANEL, 2] and x [rows, I]. */
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
            ints numbers = pair_at(x + row * inputs + i);
            sums[row][0] = add_pairs(sums[row][0], first, numbers);
            sums[row][1] = add_pairs(sums[row][1], second, numbers);
        }
    }
    EACH_ROW
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) store(out + row * outputs + half * LANES, sums[row][half]);
}

static void multiply_pairs_some(const void *what, int64_t begin, int64_t end) {
    const struct multiplied *of = what;
    const int64_t rows = of->rows, inputs = of->matrix->inputs, outputs = of->matrix->outputs;
    const element *panels = of->matrix->panels, *bias = of->matrix->bias, *x = of->x;
    for (int64_t at = begin * PANEL; at < end * PANEL; at += PANEL) {
#define TILE(count)                                                                                                 \
    multiply_pairs(panels + at * inputs, x + row * inputs, bias ? bias + at : 0, of->out + row * outputs + at, inputs, \
                   outputs, count)
        BY_ROWS(TILE, rows);
#undef TILE
    }
}

/* x [T, I] times a matrix of pairs: out [T, O]. No scratch memory is needed. */
static void product_elements(const element *x, const struct matrix *matrix, element *out, void *scratch, int64_t rows) {
    (void)scratch;
    const struct multiplied of = {x, matrix, out, rows, 0, 0};
    share_panels(multiply_pairs_some, &of);
}
#else
const int elements_paired = 0, knows_narrow = 1;

/* Scales and offsets of a group, for both vectors of a panel. */
struct shared {
    vec scale[2], offset[2];
};

INLINE struct shared shared_by(const char *group) {
    const float *scales = (const float *)group, *offsets = scales + PANEL;
    return (struct shared){{load_floats(scales), load_floats(scales + LANES)},
                           {load_floats(offsets), load_floats(offsets + LANES)}};
}

/* Return how many inputs' values a word holds. */
INLINE int in_word(const enum kind kind) { return kind == NIBBLES ? 8 : 4; }

INLINE int64_t bytes_of(const enum kind kind, int64_t inputs, int64_t group) {
    return PANEL * (inputs / group * 2 * sizeof(float) + inputs / in_word(kind) * sizeof(int32_t));
}

/* Return the weights of one input, whose values are the j-th of these words, for one vector of a panel. */
INLINE vec weights_of(ints words, const enum kind kind, const int j, vec scale, vec offset) {
    ints values = kind == NIBBLES ? words >> 4 * j & 15 : words << (24 - 8 * j) >> 24;
    return __builtin_convertvector(values, vec) * scale + offset;
}

/* Run `use` with the weights of each input i of a panel of values, from the panel's vector `half` on. They are in
 * registers only if the compiler unrolls the loop over a word's inputs. */
#define EACH_INPUT(panel, kind, inputs, group, half, use)                                                 \
    for (int64_t i = 0; i < (inputs);) {                                                                  \
        const struct shared shared = shared_by(panel);                                                    \
        const char *end = (panel) + bytes_of(kind, group, group);                                         \
        fetch(panel, end - (panel));                                                                      \
        for ((panel) += 2 * PANEL * sizeof(float); (panel) < end; (panel) += PANEL * sizeof(int32_t)) {   \
            const ints some = load_ints((panel) + (half) * sizeof some), more = load_ints((panel) + sizeof more); \
            _Pragma("GCC unroll 8") for (int j = 0; j < in_word(kind); j++, i++) {                        \
                vec first = weights_of(some, kind, j, shared.scale[half], shared.offset[half]);           \
                vec second = weights_of(more, kind, j, shared.scale[1], shared.offset[1]);                \
                use                                                                                       \
            }                                                                                             \
        }                                                                                                 \
    }

/* Convert a panel of values to floats [I, PANEL]. */
INLINE void make_floats(const char *panel, const enum kind kind, int64_t inputs, const int64_t group, float *floats) {
    EACH_INPUT(panel, kind, inputs, group, 0, {
        store_floats(floats + i * PANEL, first);
        store_floats(floats + i * PANEL + LANES, second);
    })
}

/* Compute out [rows, O] for one panel of values, or for one of its vectors, and floats x [rows, I]. */
INLINE void multiply_values(const char *panel, const enum kind kind, const int64_t group, const int half,
                            const int vectors, const float *x, const element *bias, element *out, int64_t inputs,
                            int64_t outputs, const int rows) {
    vec sums[MOST_ROWS][2];
    EACH_ROW
    for (int row = 0; row < rows; row++)
        for (int at = 0; at < vectors; at++) sums[row][at] = bias ? load(bias + (half + at) * LANES) : all(0);
    EACH_INPUT(panel, kind, inputs, group, half, {
        EACH_ROW
        for (int row = 0; row < rows; row++) {
            sums[row][0] += first * x[row * inputs + i];
            if (vectors == 2) sums[row][1] += second * x[row * inputs + i];
        }
    })
    EACH_ROW
    for (int row = 0; row < rows; row++)
        for (int at = 0; at < vectors; at++) store(out + row * outputs + (half + at) * LANES, sums[row][at]);
}

INLINE int size_of(const enum kind kind) {
    return kind == HALVES ? sizeof(uint16_t) : kind == FLOATS ? sizeof(float) : sizeof(element);
}

INLINE vec load_of(const enum kind kind, const void *at) {
    return kind == HALVES ? load_halves(at) : kind == FLOATS ? load_floats(at) : load(at);
}

/* Compute out [rows, O] for one panel [I, PANEL] of ELEMENTS, HALVES or FLOATS, and floats x [rows, I]. */
INLINE void multiply(const char *panel, const enum kind kind, const float *x, const element *bias, element *out,
                     int64_t inputs, int64_t outputs, const int rows) {
    vec sums[ROWS][2];
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) sums[row][half] = bias ? load(bias + half * LANES) : all(0);
    for (int64_t i = 0; i < inputs; i++, panel += PANEL * size_of(kind)) {
        if (kind != FLOATS) fetch(panel, PANEL * size_of(kind)); /* FLOATS were written just before */
        vec first = load_of(kind, panel), second = load_of(kind, panel + LANES * size_of(kind));
        KEEP(first);
        KEEP(second);
        for (int row = 0; row < rows; row++) {
            sums[row][0] += first * x[row * inputs + i];
            sums[row][1] += second * x[row * inputs + i];
        }
    }
    for (int row = 0; row < rows; row++)
        for (int half = 0; half < 2; half++) store(out + row * outputs + half * LANES, sums[row][half]);
}

/* The rows from which on a panel is converted to floats once: MANY for bfloat16; SOME for values, which cost more. */
enum { MANY = 4 * ROWS, SOME = ROWS + 1 };

static void multiply_some(const void *what, int64_t begin, int64_t end) {
    const struct multiplied *of = what;
    const struct matrix *matrix = of->matrix;
    const int64_t rows = of->rows, inputs = matrix->inputs, outputs = matrix->outputs, group = matrix->group;
    const enum kind kind = matrix->kind;
    const element *bias = matrix->bias;
    const int of_values = kind == NIBBLES || kind == BYTES;
    const int64_t bytes = of_values ? bytes_of(kind, inputs, group) : inputs * PANEL * size_of(kind);
    const int apart = of_values && ROWS == 6 && rows == 8; /* each vector of a panel by itself: no weight twice */
    const int narrow = of_values ? apart || rows < SOME : size_of(kind) == sizeof(float) || rows < MANY;
    float *copy = narrow ? 0 : own_room(inputs * PANEL * sizeof *copy);
    for (int64_t at = begin * PANEL; at < end * PANEL; at += PANEL) {
        const char *panel = (const char *)matrix->panels + at / PANEL * bytes;
#define BESIDE(count) \
    of->floats + row * inputs, bias ? bias + at : 0, of->out + row * outputs + at, inputs, outputs, count
#define OF_FLOATS(count) multiply((const char *)copy, FLOATS, BESIDE(count))
#define OF_ELEMENTS(count) multiply(panel, ELEMENTS, BESIDE(count))
#define OF_HALVES(count) multiply(panel, HALVES, BESIDE(count))
#define OF_NIBBLES(count) multiply_values(panel, NIBBLES, NIBBLES_GROUP, 0, 2, BESIDE(count))
#define OF_BYTES(count) multiply_values(panel, BYTES, group, 0, 2, BESIDE(count))
        if (copy) {
            if (kind == NIBBLES)
                make_floats(panel, NIBBLES, inputs, NIBBLES_GROUP, copy);
            else if (kind == BYTES)
                make_floats(panel, BYTES, inputs, group, copy);
            else
                for (int64_t i = 0; i < inputs * PANEL; i += LANES)
                    store_floats(copy + i, load_halves((const uint16_t *)panel + i));
            BY_ROWS(OF_FLOATS, rows);
        } else if (apart) {
            const int64_t row = 0;
            if (kind == NIBBLES) {
                multiply_values(panel, NIBBLES, NIBBLES_GROUP, 0, 1, BESIDE(8));
                multiply_values(panel, NIBBLES, NIBBLES_GROUP, 1, 1, BESIDE(8));
            } else {
                multiply_values(panel, BYTES, group, 0, 1, BESIDE(8));
                multiply_values(panel, BYTES, group, 1, 1, BESIDE(8));
            }
        } else if (kind == NIBBLES) {
            BY_ROWS(OF_NIBBLES, rows);
        } else if (kind == BYTES) {
            BY_ROWS(OF_BYTES, rows);
        } else if (kind == HALVES && sizeof(element) != sizeof(uint16_t)) {
            BY_ROWS(OF_HALVES, rows);
        } else {
            BY_ROWS(OF_ELEMENTS, rows);
        }
    }
}

#ifdef BFLOAT16
static void make_floats_some(const void *what, int64_t begin, int64_t end) {
    const struct multiplied *of = what;
    const int64_t inputs = of->matrix->inputs;
    float *floats = of->scratch;
    for (int64_t i = begin * inputs; i < end * inputs; i += LANES) store_floats(floats + i, load(of->x + i));
}
#endif

/* x [T, I] times a matrix of any kind but INT8: out [T, O]. scratch: for x as floats [T, I], if it has another type. */
static void product_elements(const element *x, const struct matrix *matrix, element *out, void *scratch, int64_t rows) {
#ifdef BFLOAT16
    const struct multiplied of = {x, matrix, out, rows, scratch, scratch};
    share_rows(make_floats_some, &of, rows, matrix->inputs, WORTH_THREADS);
#else
    const struct multiplied of = {x, matrix, out, rows, x, scratch};
#endif
    share_panels(multiply_some, &of);
}
#endif

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
        for (int half = 0; half < 2; half++) {
            vec y = __builtin_convertvector(sums[row][half], vec) * load_floats(scales + half * LANES) * steps[row];
            ROUNDED(y);
            store(out + row * outputs + half * LANES, bias ? y + load(bias + half * LANES) : y);
        }
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
    share_panels(multiply_int8_some, &of);
}

#else
const int inputs_together = 0, weights_added = 0;
#endif

/* Whether products of elements are worth it: for floats, torch's are as good if vectors hold fewer numbers. */
#if defined BFLOAT16 || defined __AVX2__
const int knows_wide = 1;
#else
const int knows_wide = 0;
#endif

/* x [T, I] times a matrix, plus its bias: out [T, O]. scratch: T * (4 I + 8) bytes. */
void product(const element *x, const struct matrix *matrix, element *out, void *scratch, int64_t rows) {
#ifdef __AVX2__
    if (matrix->kind == INT8) {
        product_int8(x, matrix, out, scratch, rows);
        return;
    }
#endif
    product_elements(x, matrix, out, scratch, rows);
}
