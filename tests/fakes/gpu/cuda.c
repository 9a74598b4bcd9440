/* A small libcuda.so.1 that only counts: FAKE_CUDA_GPUS of them; without it there is no device.
 *
 * After fake_failed_kernel, the process can use its device no more, as after an assertion in a real kernel.
 */
#include <stdlib.h>
#include <string.h>

static int broken;

void fake_failed_kernel(void) { broken = 710; }
int cuCtxSynchronize(void) { return broken; }
int cuInit(unsigned flags) { (void)flags; return getenv("FAKE_CUDA_GPUS") ? 0 : 100; }
int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = visible && !strcmp(visible, "-1") ? 0 : atoi(getenv("FAKE_CUDA_GPUS"));
    return 0;
}
