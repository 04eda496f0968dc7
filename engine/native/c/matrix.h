/* Products. A matrix [O, I] is stored in panels of PANEL outputs; in a panel, the weights of one input are contiguous.
 * Registers hold the sums of ROWS rows of inputs times one panel (with AMX: AMX_ROWS). So each weight is read once for
 * that many rows, and every sum runs over the inputs in one order, whatever the number of rows. */

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
