/* The kernel of cuda.c and opencl.c. Each thread throws points into the unit square
 * and counts those in the quarter circle, of which there are pi/4. */

/* scramble makes numbers unlike each other that differ by one.
 * https://burtleburtle.net/bob/hash/integer.html */
static unsigned scramble(unsigned x) {
    x = (x ^ 61) ^ (x >> 16);
    x *= 9;
    x ^= x >> 4;
    x *= 0x27d4eb2d;
    return x ^ (x >> 15);
}

/* next is a generator of Marsaglia's: https://www.jstatsoft.org/article/view/v008i14 */
static unsigned next(unsigned *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    return *state ^= *state << 5;
}

kernel void montecarlo(global unsigned *hits, unsigned points) {
    unsigned thread = get_global_id(0);
    unsigned state = scramble(thread) | 1, count = 0;
    for (unsigned i = 0; i < points; i++) {
        unsigned long x = next(&state) >> 8, y = next(&state) >> 8; /* 24 bits each */
        count += x * x + y * y < (1ul << 48);
    }
    hits[thread] = count;
}
