/* The matrix unit of Intel's server processors (AMX, from Sapphire Rapids on): eight tile registers of up to 16 rows
 * of 64 bytes. One instruction multiplies a tile of rows [16, 32] by one of pairs [16, 16, 2] and adds to sums [16,
 * 16]; with int8, [16, 64] by [16, 16, 4]. See the Intel 64 and IA-32 Architectures Software Developer's Manual,
 * volume 1, chapter 18. With bfloat16, an instruction adds up the even inputs of a tile, and the odd ones, and adds
 * both to the sum. So a row's numbers are the same whatever is in the others, as long as tiles begin at the same
 * inputs. */

/* Whether this process may use it. Not a constant: it depends on the system too. Without it, vectors do the same, up to
 * rounding. */
int amx_granted = 0;

#if defined __AMX_TILE__ && defined __AMX_BF16__ && defined __AMX_INT8__ && defined __AVX512BF16__ && \
    defined __AVX512VNNI__ && defined __x86_64__ && defined __linux__
#define AMX
#include <sys/syscall.h>
#include <unistd.h>

const int knows_amx = 1;

/* Linux saves the 8 KiB of the tiles only for processes that have asked. It refuses before 5.16, behind a filter of
 * system calls, and if a thread has a stack for signals that is too small for them. */
__attribute__((constructor)) static void ask_for_amx(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    amx_granted = !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

/* TILE_PAIRED: pairs of bfloat16 in a row. */
enum { TILE_ROWS = 16, TILE_BYTES = 64, TILE_PAIRED = TILE_BYTES / 4, TILE_INPUTS = 2 * TILE_PAIRED };

/* The operand of LDTILECFG. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

/* The rows for which this thread's tiles have their shapes; -1 if they have none. */
static _Thread_local int64_t tiles_for_rows = -1;

/* Give this thread's tiles the shapes for a product of up to 32 rows. Tiles 0 and 1 are for the sums of the first 16
 * rows and 32 outputs, 2 and 3 for those of the other rows; 4 and 5 for these rows, 6 and 7 for weights. */
__attribute__((unused)) static void shape_tiles(int64_t rows) {
    if (tiles_for_rows == rows) return;
    struct tile_shapes shapes = {.palette = 1};
    const uint8_t first = rows < TILE_ROWS ? rows : TILE_ROWS, second = rows - first;
    const uint8_t all_rows[] = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS};
    for (int tile = 0; tile < 8; tile++) {
        shapes.rows[tile] = all_rows[tile];
        shapes.bytes[tile] = all_rows[tile] ? TILE_BYTES : 0;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    tiles_for_rows = rows;
}

/* Give the tiles back, so that the system need not save them. */
static void release_tiles(void) {
    if (tiles_for_rows < 0) return;
    __asm__ volatile("tilerelease");
    tiles_for_rows = -1;
}

/* In assembly: GCC 12 does not know that its intrinsics read memory. stride: bytes from one row to the next. */
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
#define TILE_LOAD(tile, at, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(at), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(tile, at, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(at), "r"((int64_t)(stride)) : "memory")
/* sums += rows * weights: pairs of bfloat16, or four of int8 by as many of uint8. */
#define TILE_BFLOAT16(sums, rows, weights) \
    __asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #rows ", %%tmm" #sums ::)
#define TILE_INT8(sums, rows, weights) \
    __asm__ volatile("tdpbsud %%tmm" #weights ", %%tmm" #rows ", %%tmm" #sums ::)
#else
const int knows_amx = 0;

static inline void release_tiles(void) {}
#endif
