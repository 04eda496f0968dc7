/* Sums of many rows times a panel in AMX tiles. A panel's bytes are in the tiles' order, in bfloat16 and in int8; a
 * step multiplies 64 bytes of each row. */

#ifdef AMX
/* AMX_ROWS: rows that share a load of weights. STEP: a step's bytes of weights. STEPS: the most steps of a panel that
 * stay in the first cache, beside those of the rows, while all rows pass. ROWS_BYTES: of the rows that stay in the
 * second cache while all panels of a piece pass; they are MOST_AMX_ROWS at most. */
enum { AMX_ROWS = 2 * TILE_ROWS, STEP = TILE_ROWS * PANEL * 4, STEPS = 10 };
enum { ROWS_BYTES = 1 << 18, MOST_AMX_ROWS = 8 * AMX_ROWS };

/* Compute the sums [rows, PANEL] of up to AMX_ROWS rows, in floats or (if `whole`) in integers, over `steps` steps; add
 * to what is there if `more`. x: rows of `width` bytes. tiles: how many the rows fill. */
INLINE void amx_sums(const char *panel, const char *x, int64_t width, int64_t steps, const int tiles, const int whole,
                     int more, int first_use, void *sums) {
    char *at = sums, *below = at + TILE_ROWS * PANEL * 4;
    if (more) {
        TILE_LOAD(0, at, PANEL * 4);
        TILE_LOAD(1, at + TILE_BYTES, PANEL * 4);
        if (tiles == 2) {
            TILE_LOAD(2, below, PANEL * 4);
            TILE_LOAD(3, below + TILE_BYTES, PANEL * 4);
        }
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        if (tiles == 2) {
            TILE_ZERO(2);
            TILE_ZERO(3);
        }
    }
    for (int64_t step = 0; step < steps; step++, panel += STEP, x += TILE_BYTES) {
        if (first_use) fetch(panel, STEP);
        TILE_LOAD(6, panel, PANEL * 4);
        TILE_LOAD(4, x, width);
        TILE_LOAD(7, panel + TILE_BYTES, PANEL * 4);
        if (whole) {
            TILE_INT8(0, 4, 6);
            TILE_INT8(1, 4, 7);
        } else {
            TILE_BFLOAT16(0, 4, 6);
            TILE_BFLOAT16(1, 4, 7);
        }
        if (tiles == 2) {
            TILE_LOAD(5, x + TILE_ROWS * width, width);
            if (whole) {
                TILE_INT8(2, 5, 6);
                TILE_INT8(3, 5, 7);
            } else {
                TILE_BFLOAT16(2, 5, 6);
                TILE_BFLOAT16(3, 5, 7);
            }
        }
    }
    TILE_STORE(0, at, PANEL * 4);
    TILE_STORE(1, at + TILE_BYTES, PANEL * 4);
    if (tiles == 2) {
        TILE_STORE(2, below, PANEL * 4);
        TILE_STORE(3, below + TILE_BYTES, PANEL * 4);
    }
}

/* Return how many rows of `width` bytes pass all panels of a piece before the next ones do. */
INLINE int64_t rows_together(int64_t width) {
    const int64_t blocks = ROWS_BYTES / (width * AMX_ROWS);
    return blocks * AMX_ROWS > MOST_AMX_ROWS ? MOST_AMX_ROWS : blocks > 1 ? blocks * AMX_ROWS : AMX_ROWS;
}

/* Compute the sums [rows, PANEL] of any number of rows over the whole steps of their `width` bytes. */
INLINE void amx_product(const char *panel, const char *x, int64_t width, int64_t rows, const int whole, void *sums) {
    const int64_t steps = width / TILE_BYTES, parts = rows > AMX_ROWS && steps ? (steps + STEPS - 1) / STEPS : 1;
    for (int64_t part = 0; part < parts; part++) {
        const int64_t begin = steps * part / parts, count = steps * (part + 1) / parts - begin;
        for (int64_t row = 0; row < rows; row += AMX_ROWS) {
            const int64_t some = rows - row < AMX_ROWS ? rows - row : AMX_ROWS;
            const char *weights = panel + begin * STEP, *mine = x + row * width + begin * TILE_BYTES;
            void *here = (char *)sums + row * PANEL * 4;
            shape_tiles(some);
            if (some > TILE_ROWS)
                amx_sums(weights, mine, width, count, 2, whole, part > 0, !row, here);
            else
                amx_sums(weights, mine, width, count, 1, whole, part > 0, !row, here);
        }
    }
}
#endif
