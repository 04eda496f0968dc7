/* Products in floats, of matrices of any kind but INT8. */

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
