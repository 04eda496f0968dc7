/* A product of any kind. */

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
