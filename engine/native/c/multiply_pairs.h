/* Products of bfloat16 if the processor multiplies it itself and adds two products in one instruction. */

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

#ifdef AMX
/* Write out [rows, O] for one panel from its sums over the whole steps, after adding the other inputs. */
INLINE void finish_pairs(const element *panel, const element *x, float (*sums)[PANEL], const element *bias,
                         element *out, int64_t inputs, int64_t outputs, int64_t rows) {
    const vec zero = all(0), first_bias = bias ? load(bias) : zero, second_bias = bias ? load(bias + LANES) : zero;
    for (int64_t row = 0; row < rows; row++) {
        vec first = load_floats(sums[row]), second = load_floats(sums[row] + LANES);
        for (int64_t i = inputs / TILE_INPUTS * TILE_INPUTS; i < inputs; i += 2) {
            const ints numbers = pair_at(x + row * inputs + i);
            first = add_pairs(first, load_ints(panel + i * PANEL), numbers);
            second = add_pairs(second, load_ints(panel + i * PANEL + 2 * LANES), numbers);
        }
        store(out + row * outputs, first + first_bias);
        store(out + row * outputs + LANES, second + second_bias);
    }
}

static void multiply_pairs_amx(const void *what, int64_t begin, int64_t end) {
    const struct multiplied *of = what;
    const int64_t rows = of->rows, inputs = of->matrix->inputs, outputs = of->matrix->outputs;
    const element *panels = of->matrix->panels, *bias = of->matrix->bias;
    const int64_t most = rows_together(inputs * sizeof *panels);
    _Alignas(64) float sums[MOST_AMX_ROWS][PANEL];
    for (int64_t row = 0; row < rows; row += most)
        for (int64_t at = begin * PANEL; at < end * PANEL; at += PANEL) {
            const int64_t some = rows - row < most ? rows - row : most;
            const element *panel = panels + at * inputs, *x = of->x + row * inputs;
            amx_product((const char *)panel, (const char *)x, inputs * sizeof *panel, some, 0, sums);
            finish_pairs(panel, x, sums, bias ? bias + at : 0, of->out + row * outputs + at, inputs, outputs, some);
        }
}
#endif

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
#ifdef AMX
    share_panels(amx_granted ? multiply_pairs_amx : multiply_pairs_some, &of);
#else
    share_panels(multiply_pairs_some, &of);
#endif
}
