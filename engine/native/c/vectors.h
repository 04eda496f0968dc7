/* Vectors as wide as the processor's registers, and operations on one at a time. */

#if defined __SSE__
#include <immintrin.h>
#endif

/* The numbers in a register, and the number of registers. The first version of AVX-512 (Knights Landing) lacks 512-bit
 * instructions for bytes and 16-bit words. */
#if defined __AVX512BW__
enum { LANES = 16, REGISTERS = 32 };
#elif defined __AVX__
enum { LANES = 8, REGISTERS = 16 };
#elif defined __aarch64__
enum { LANES = 4, REGISTERS = 32 };
#else
enum { LANES = 4, REGISTERS = 16 };
#endif
#define INLINE __attribute__((always_inline)) static inline

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int32_t ints_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float floats_at __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint16_t halves_at __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* bfloat16 is the upper half of a float. Intrinsics, as GCC 12 compiles a vector conversion to three instructions. */
static inline vec load_halves(const uint16_t *at) {
#if defined __AVX512BW__
    words wide = (words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)at));
#elif defined __AVX2__
    words wide = (words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)at));
#else
    words wide = __builtin_convertvector((halves)*(const halves_at *)at, words);
#endif
    return (vec)(wide << 16);
}

#ifdef BFLOAT16
typedef uint16_t element;

static inline vec load(const element *at) { return load_halves(at); }

/* Round to nearest, ties to even; NaN stays NaN. */
static inline void store(element *at, vec x) {
#ifdef __AVX512BF16__ /* this instruction takes numbers below 2^-126 as zero */
    _mm256_storeu_si256((void *)at, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    words bits = (words)x, none = (words)(x != x);
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(halves_at *)at = __builtin_convertvector((rounded & ~none) | (0x7fc0 & none), halves);
#endif
}
#else
typedef float element;

static inline vec load(const element *at) { return *(const floats_at *)at; }
static inline void store(element *at, vec x) { *(floats_at *)at = x; }
#endif

static inline vec load_floats(const float *at) { return *(const floats_at *)at; }
static inline void store_floats(float *at, vec x) { *(floats_at *)at = x; }
static inline ints load_ints(const void *at) { return *(const ints_at *)at; }
static inline vec all(float x) { return x - (vec){0}; }

/* Keep a vector that several products use in a register. GCC would load it from memory for each of them, and with
 * sixteen registers those loads take longer than the products. */
#if defined __AVX2__ && !defined __AVX512F__
#define KEEP(vector) __asm__("" : "+x"(vector))
#else
#define KEEP(vector) (void)(vector)
#endif

/* Round a product before it is added to something. The compiler may make one instruction of both (FMA), which does not
 * round in between, and it may do so for some rows of a tile only. */
#if defined __SSE__
#define ROUNDED(vector) __asm__("" : "+x"(vector))
#elif defined __aarch64__
#define ROUNDED(vector) __asm__("" : "+w"(vector))
#else
#define ROUNDED(vector) __asm__("" : "+m"(vector))
#endif

/* The larger, or the smaller, of each two numbers; b's if they are equal or one is NaN. x86's instructions do exactly
 * that; GCC 12 compiles the comparison to three other ones, each of which waits for the one before. */
#if defined __AVX512BW__
static inline vec larger(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec smaller(vec a, vec b) { return _mm512_min_ps(a, b); }
#elif defined __AVX__
static inline vec larger(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec smaller(vec a, vec b) { return _mm256_min_ps(a, b); }
#elif defined __SSE__
static inline vec larger(vec a, vec b) { return _mm_max_ps(a, b); }
static inline vec smaller(vec a, vec b) { return _mm_min_ps(a, b); }
#else
static inline vec larger(vec a, vec b) {
    ints first = a > b;
    return (vec)(((ints)a & first) | ((ints)b & ~first));
}
static inline vec smaller(vec a, vec b) { return -larger(-a, -b); }
#endif

static inline vec magnitude(vec x) { return (vec)((ints)x & 0x7fffffff); }

typedef float four __attribute__((vector_size(16)));

/* Add up the groups of four numbers in x: the first half and the second half, and so on. */
static inline four folded(vec x) {
    four parts[LANES / 4];
    memcpy(parts, &x, sizeof parts);
    for (int half = LANES / 8; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
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

/* Whether a number is larger than `most`, or is NaN. */
static inline int some_above(vec x, float most) {
#if defined __AVX512BW__
    return _mm512_cmp_ps_mask(x, all(most), _CMP_NLE_UQ) != 0;
#else
    int some = 0;
    for (int i = 0; i < LANES; i++) some |= !(x[i] <= most);
    return some;
#endif
}

/* Adding and subtracting it rounds to the nearest integer, ties to even, for |x| < 2^22: above 1.5 * 2^23, floats
 * have no bit left for a fraction. */
static const float ROUNDING = 12582912.0f;

/* exp(x) of `count` vectors in place, within two units in the last place; x is clamped to -87 .. 88, what float32 can
 * hold. x = n ln 2 + r with |r| <= ln 2 / 2, where the first eight terms of the Taylor series are exact enough; 2^n is
 * made from exponent bits. Each step of a vector waits for the one before; steps of several vectors are interleaved. */
INLINE void exponentials_of(vec *x, const int count) {
    static const float taylor[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    enum { MOST = 4 };
    vec r[MOST], y[MOST], shifted[MOST];
#define EACH _Pragma("GCC unroll 4") for (int i = 0; i < count; i++)
    EACH x[i] = larger(all(-87.0f), x[i]);
    EACH x[i] = smaller(all(88.0f), x[i]);
    EACH shifted[i] = x[i] * 1.44269504f + ROUNDING;
    EACH y[i] = shifted[i] - ROUNDING;
    EACH r[i] = x[i] - y[i] * 0.693359375f; /* ln 2 in two parts, the first one short, so that n times it is exact */
    EACH r[i] = r[i] + y[i] * 2.12194440e-4f;
    EACH y[i] = r[i] * (1.0f / 5040) + taylor[0];
    _Pragma("GCC unroll 6") for (int term = 1; term < 7; term++) EACH y[i] = y[i] * r[i] + taylor[term];
    EACH x[i] = y[i] * (vec)(((ints)shifted[i] << 23) + (127 << 23));
#undef EACH
}

static inline vec exponential(vec x) {
    exponentials_of(&x, 1);
    return x;
}

#if defined BFLOAT16 && defined __AVX512BF16__
/* The processor multiplies bfloat16 and adds two products in one instruction: each lane holds a pair. */
#define PAIRS

/* In assembly, for the same reason as add_products in multiply_int8.h. */
INLINE vec add_pairs(vec sums, ints a, ints b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
}

/* Load a pair into all lanes. */
INLINE ints pair_at(const void *at) {
    int32_t pair;
    memcpy(&pair, at, sizeof pair);
    return pair - (ints){0};
}

/* Pair a's numbers with b's. */
INLINE ints pairs_of(const element *a, const element *b) {
    ints low = (ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)a));
    ints high = (ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)b));
    return low | high << 16;
}

/* Pair the numbers of two float vectors, rounded to nearest, ties to even. */
INLINE ints rounded_pairs(vec a, vec b) {
    static const uint16_t order[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i apart = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    return (ints)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), apart);
}

/* 2^x with a relative error of at most 8e-5, a twentieth of bfloat16's rounding error; 0 if it is less than float32 can
 * hold. The cubic polynomial has the least relative error in [0, 1). */
INLINE vec power_of_two(vec x) {
    vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor(x) */
    vec y = r * 0.07802455f + 0.22606718f;
    y = y * r + 0.69583349f;
    y = y * r + 0.99992523f;
    return _mm512_scalef_ps(y, x);
}

/* 2^x of integers, exactly. */
INLINE vec whole_power_of_two(vec x) { return _mm512_scalef_ps(all(1), x); }

/* Round up to an integer. */
INLINE vec upwards(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }

/* Write the transpose of 16 rows of 16 numbers: row r is at from + r * pitch, column c goes to to + c * width. */
INLINE void transpose(const int32_t *from, int64_t pitch, int32_t *to, int64_t width) {
    __m512i rows[LANES], fours[LANES], halves_of[LANES];
    for (int r = 0; r < LANES; r++) rows[r] = _mm512_loadu_si512(from + r * pitch);
    for (int r = 0; r < LANES; r += 4) { /* within each quarter of the vectors: [4, 4] transposed */
        __m512i low = _mm512_unpacklo_epi32(rows[r], rows[r + 1]), high = _mm512_unpackhi_epi32(rows[r], rows[r + 1]);
        __m512i low2 = _mm512_unpacklo_epi32(rows[r + 2], rows[r + 3]);
        __m512i high2 = _mm512_unpackhi_epi32(rows[r + 2], rows[r + 3]);
        fours[r] = _mm512_unpacklo_epi64(low, low2);
        fours[r + 1] = _mm512_unpackhi_epi64(low, low2);
        fours[r + 2] = _mm512_unpacklo_epi64(high, high2);
        fours[r + 3] = _mm512_unpackhi_epi64(high, high2);
    }
    for (int c = 0; c < 4; c++) { /* the quarters of rows r, r + 4, r + 8, r + 12 */
        halves_of[c] = _mm512_shuffle_i32x4(fours[c], fours[c + 4], 0x44);
        halves_of[c + 4] = _mm512_shuffle_i32x4(fours[c], fours[c + 4], 0xee);
        halves_of[c + 8] = _mm512_shuffle_i32x4(fours[c + 8], fours[c + 12], 0x44);
        halves_of[c + 12] = _mm512_shuffle_i32x4(fours[c + 8], fours[c + 12], 0xee);
    }
    for (int c = 0; c < 4; c++) {
        _mm512_storeu_si512(to + c * width, _mm512_shuffle_i32x4(halves_of[c], halves_of[c + 8], 0x88));
        _mm512_storeu_si512(to + (c + 4) * width, _mm512_shuffle_i32x4(halves_of[c], halves_of[c + 8], 0xdd));
        _mm512_storeu_si512(to + (c + 8) * width, _mm512_shuffle_i32x4(halves_of[c + 4], halves_of[c + 12], 0x88));
        _mm512_storeu_si512(to + (c + 12) * width, _mm512_shuffle_i32x4(halves_of[c + 4], halves_of[c + 12], 0xdd));
    }
}
#endif
