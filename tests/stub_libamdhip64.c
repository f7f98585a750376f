// A stand-in for libamdhip64: takes the calls that indexer_rt makes, remembers the last launch and fails on request.
// stub_fail("hipModuleLoadData", 209) makes every later call of that function return 209; code 0 makes it work again.
#include <stdint.h>
#include <string.h>

typedef struct {
  uint32_t grid[3], block[3], lds_bytes;
  uint64_t stream, kernarg_bytes;
  uint8_t kernarg[4096];
} launch_t;

static launch_t last;
static uint64_t counts[3];  // loads, look-ups, launches
static char failing[64], name_asked[256];
static int failing_code;

static int status(const char *call) { return strcmp(call, failing) ? 0 : failing_code; }

void stub_fail(const char *call, int code) {
  strncpy(failing, call, sizeof failing - 1);
  failing_code = code;
}
const launch_t *stub_last(void) { return &last; }
const uint64_t *stub_counts(void) { return counts; }
const char *stub_name(void) { return name_asked; }

int hipRuntimeGetVersion(int *version) {
  *version = 70226015;
  return 0;
}

int hipModuleLoadData(void **module, const void *image) {
  counts[0]++;
  *module = (void *)0x1234;  // set on failure too, as the real one does
  return memcmp(image, "\177ELF", 4) ? 200 : status("hipModuleLoadData");
}

int hipModuleGetFunction(void **function, void *module, const char *name) {
  counts[1]++;
  strncpy(name_asked, name, sizeof name_asked - 1);
  *function = (void *)0x5678;
  return module == (void *)0x1234 ? status("hipModuleGetFunction") : 400;
}

int hipModuleLaunchKernel(void *function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                          uint32_t lds_bytes, void *stream, void **parameters, void **extra) {
  counts[2]++;
  if (function != (void *)0x5678) return 400;
  if (parameters || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3) return 1;
  last.kernarg_bytes = *(const uint64_t *)extra[3];
  memcpy(last.kernarg, extra[1], last.kernarg_bytes);
  last.grid[0] = gx, last.grid[1] = gy, last.grid[2] = gz;
  last.block[0] = bx, last.block[1] = by, last.block[2] = bz;
  last.lds_bytes = lds_bytes;
  last.stream = (uint64_t)stream;
  return status("hipModuleLaunchKernel");
}
