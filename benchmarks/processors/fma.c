/* fmaf and fma for qemu on Intel: a tenth of the time.
 *
 * qemu emulates AVX2 with 32-byte moves and leaves the upper halves of the registers in use. An
 * Intel chip then waits at every change between SSE, as qemu's C code, and AVX, as the C library's
 * fmaf. The results are the C library's: one rounding.
 */
float fmaf(float a, float b, float c) {
    __asm__("vzeroupper\n\tvfmadd213ss %2, %1, %0" : "+x"(a) : "x"(b), "x"(c));
    return a;
}

double fma(double a, double b, double c) {
    __asm__("vzeroupper\n\tvfmadd213sd %2, %1, %0" : "+x"(a) : "x"(b), "x"(c));
    return a;
}
