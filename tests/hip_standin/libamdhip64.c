// A stand-in for libamdhip64 at the surface that hip-python and indexer_rt touch. It has no GPU: a launch is handed to a
// callback, with the bytes of its arguments, and returns at once where there is none.
//
// It is strict where the real one is: nothing works before hipInit, an image must be an ELF for the current device's
// processor, functions and streams belong to a device, and no module is loaded while its thread's stream is captured.
// Every call is counted and the last LOG_LENGTH are kept; any function fails on request (standin_fail).
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 16, MAX_STREAMS = 256, LOG_LENGTH = 256, NAME_BYTES = 40, MAX_FUNCTIONS = 64, PROPERTY_BYTES = 4096 };

// hipError_t
enum {
  SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONFIGURATION = 9, INVALID_DEVICE = 101,
  INVALID_IMAGE = 200, NO_BINARY = 209, FILE_NOT_FOUND = 301, NOT_LOADABLE = 303, INVALID_HANDLE = 400,
  NOT_FOUND = 500, CONTEXT_DESTROYED = 709, CAPTURING = 900,
};

typedef struct module {
  int device;
  uint64_t bytes;
  uint8_t *image;
  struct module *next;
} module_t;

typedef struct function {
  module_t *module;
  char name[256];
  struct function *next;
} function_t;

typedef struct {
  void *function;
  uint32_t grid[3], block[3], lds_bytes, device;
  uint64_t stream, kernarg_bytes;
  const void *kernarg, *const *parameters;
} launch_t;

typedef struct {
  char name[NAME_BYTES];
  int32_t status, device;
} record_t;

typedef struct {
  char function[NAME_BYTES];
  int32_t code, times;  // times < 0: for ever
} failure_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_initialised, device_count = 1, runtime_version = 70226015;
static uint32_t machines[MAX_DEVICES] = {0x4f};  // EF_AMDGPU_MACH_*, of e_flags
static uint8_t properties[MAX_DEVICES][PROPERTY_BYTES];
static _Thread_local int current_device, is_capturing;
static struct { uint64_t handle; int device; } streams[MAX_STREAMS];
static int stream_count;
static module_t *modules;
static function_t *functions;
static record_t records[LOG_LENGTH];
static uint64_t record_count;
static struct { char name[NAME_BYTES]; uint64_t calls; } counters[MAX_FUNCTIONS];
static int counter_count;
static failure_t failures[8];
static int (*on_launch)(const launch_t *);
static int is_quiet;

// Count a call, keep it, and return the status that was asked for, or `status`.
static int finish(const char *name, int status) {
  pthread_mutex_lock(&lock);
  if (!is_initialised && strcmp(name, "hipInit") && !status) status = NOT_INITIALIZED;
  for (int i = 0; i < 8; i++)
    if (failures[i].times && !strcmp(failures[i].function, name)) {
      status = failures[i].code;
      if (failures[i].times > 0) failures[i].times--;
      break;
    }
  record_t *record = &records[record_count++ % LOG_LENGTH];
  strncpy(record->name, name, NAME_BYTES - 1);
  record->status = status, record->device = current_device;
  int i = 0;
  while (i < counter_count && strcmp(counters[i].name, name)) i++;
  if (i == counter_count && counter_count < MAX_FUNCTIONS) strncpy(counters[counter_count++].name, name, NAME_BYTES - 1);
  counters[i].calls++;
  pthread_mutex_unlock(&lock);
  return status;
}

// What the tests ask and set ----------------------------------------------------------------------------------------

uint64_t standin_calls(const char *name) {
  for (int i = 0; i < counter_count; i++)
    if (!strcmp(counters[i].name, name)) return counters[i].calls;
  return 0;
}
uint64_t standin_record_count(void) { return record_count; }
const record_t *standin_record(uint64_t index) { return &records[index % LOG_LENGTH]; }
void standin_fail(const char *function, int code, int times) {
  for (int i = 0; i < 8; i++)
    if (!failures[i].times || !strcmp(failures[i].function, function)) {
      strncpy(failures[i].function, function, NAME_BYTES - 1);
      failures[i].code = code, failures[i].times = times;
      return;
    }
  abort();
}
void standin_reset(void) {  // modules, functions and initialisation stay, as they do in a process
  memset(failures, 0, sizeof failures);
  memset(counters, 0, sizeof counters);
  counter_count = 0, record_count = 0, is_capturing = 0, current_device = 0;
  on_launch = 0;
}
void standin_on_launch(int (*callback)(const launch_t *)) { on_launch = callback; }
void standin_set_device(int device, uint32_t machine) {
  machines[device] = machine;
  if (device >= device_count) device_count = device + 1;
}
void standin_set_properties(int device, const void *data, uint64_t bytes) {
  memcpy(properties[device], data, bytes < PROPERTY_BYTES ? bytes : PROPERTY_BYTES);
}
void standin_set_version(int version) { runtime_version = version; }
void standin_add_stream(uint64_t handle, int device) {
  streams[stream_count].handle = handle, streams[stream_count++].device = device;
}
void standin_quiet(int on) { is_quiet = on; }  // launches return at once: no check, no count
void standin_capture(int on) { is_capturing = on; }
int standin_current_device(void) { return current_device; }
const uint8_t *standin_image(const function_t *function, uint64_t *bytes) {
  *bytes = function->module->bytes;
  return function->module->image;
}
const char *standin_name(const function_t *function) { return function->name; }

// HIP ---------------------------------------------------------------------------------------------------------------

int hipInit(unsigned flags) {
  int status = finish("hipInit", flags ? INVALID_VALUE : SUCCESS);
  if (!status) is_initialised = 1;
  return status;
}
int hipRuntimeGetVersion(int *version) { return *version = runtime_version, finish("hipRuntimeGetVersion", SUCCESS); }
int hipDriverGetVersion(int *version) { return *version = runtime_version, finish("hipDriverGetVersion", SUCCESS); }
int hipGetDeviceCount(int *count) { return *count = device_count, finish("hipGetDeviceCount", SUCCESS); }
int hipGetDevice(int *device) { return *device = current_device, finish("hipGetDevice", SUCCESS); }
int hipSetDevice(int device) {
  int status = finish("hipSetDevice", device >= 0 && device < device_count ? SUCCESS : INVALID_DEVICE);
  if (!status) current_device = device;
  return status;
}
int hipGetDevicePropertiesR0600(void *out, int device) {
  if (device < 0 || device >= device_count) return finish("hipGetDeviceProperties", INVALID_DEVICE);
  memcpy(out, properties[device], 1472);  // sizeof(hipDeviceProp_tR0600)
  return finish("hipGetDeviceProperties", SUCCESS);
}

static int load(const char *call, void **out, const uint8_t *image, uint64_t bytes) {
  int status = finish(call, !is_initialised ? NOT_LOADABLE : is_capturing ? CAPTURING : SUCCESS);
  *out = (void *)0x1234;  // garbage, as the real one leaves on failure
  if (status) return status;
  if (memcmp(image, "\177ELF\2\1\1\100", 8)) return INVALID_IMAGE;
  if ((*(const uint32_t *)(image + 48) & 0xff) != machines[current_device]) return NO_BINARY;
  if (!bytes) bytes = *(const uint64_t *)(image + 40) + (uint64_t)*(const uint16_t *)(image + 58) * *(const uint16_t *)(image + 60);
  module_t *module = malloc(sizeof *module);
  module->device = current_device, module->bytes = bytes, module->image = malloc(bytes);
  memcpy(module->image, image, bytes);
  pthread_mutex_lock(&lock);
  module->next = modules, modules = module;
  pthread_mutex_unlock(&lock);
  *out = module;
  return SUCCESS;
}
int hipModuleLoadData(void **module, const void *image) { return load("hipModuleLoadData", module, image, 0); }
int hipModuleUnload(void *module) {
  (void)module;
  return finish("hipModuleUnload", SUCCESS);
}
int hipModuleGetFunction(void **out, void *handle, const char *name) {
  module_t *module = modules;
  while (module && module != handle) module = module->next;
  // The name of a kernel's descriptor, NAME.kd, is in the symbol table's strings.
  char wanted[256] = {0};
  strncpy(wanted, name, 252);
  strcat(wanted, ".kd");
  int status = module ? NOT_FOUND : INVALID_HANDLE;
  if (module && memmem(module->image, module->bytes, wanted, strlen(wanted) + 1)) status = SUCCESS;
  status = finish("hipModuleGetFunction", status);
  if (status) return status;
  function_t *function = calloc(1, sizeof *function);
  function->module = module;
  strncpy(function->name, name, 255);
  pthread_mutex_lock(&lock);
  function->next = functions, functions = function;
  pthread_mutex_unlock(&lock);
  *out = function;
  return SUCCESS;
}
int hipFuncGetAttribute(int *value, int attribute, const void *function) {
  (void)attribute;
  return *value = 0, finish("hipFuncGetAttribute", function ? SUCCESS : INVALID_HANDLE);
}

int hipModuleLaunchKernel(void *handle, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                          uint32_t lds_bytes, void *stream, void **parameters, void **extra) {
  if (is_quiet) return SUCCESS;
  function_t *function = functions;
  while (function && function != handle) function = function->next;
  int status = SUCCESS, s = 0;
  while (s < stream_count && streams[s].handle != (uint64_t)stream) s++;
  if (!function || function->module->device != current_device) status = INVALID_HANDLE;
  else if (stream && s == stream_count) status = CONTEXT_DESTROYED;  // a stream of another runtime
  else if (stream && streams[s].device != current_device) status = INVALID_HANDLE;
  else if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024) status = INVALID_CONFIGURATION;
  else if (((uint64_t)gx * bx | (uint64_t)gy * by | (uint64_t)gz * bz) >> 32) status = INVALID_CONFIGURATION;
  else if (!parameters == !extra) status = INVALID_VALUE;
  else if (extra && (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3)) status = INVALID_VALUE;
  status = finish("hipModuleLaunchKernel", status);
  if (status || !on_launch) return status;
  launch_t launch = {
    handle, {gx, gy, gz}, {bx, by, bz}, lds_bytes, (uint32_t)current_device, (uint64_t)stream,
    extra ? *(const uint64_t *)extra[3] : 0, extra ? extra[1] : 0, (const void *const *)parameters,
  };
  return on_launch(&launch);
}

int hipStreamCreate(void **stream) {
  int status = finish("hipStreamCreate", stream_count < MAX_STREAMS ? SUCCESS : INVALID_VALUE);
  if (status) return status;
  *stream = &streams[stream_count];
  standin_add_stream((uint64_t)*stream, current_device);
  return SUCCESS;
}
int hipStreamSynchronize(void *stream) { return (void)stream, finish("hipStreamSynchronize", SUCCESS); }
int hipStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  return *status = is_capturing, finish("hipStreamIsCapturing", SUCCESS);
}
int hipDeviceSynchronize(void) { return finish("hipDeviceSynchronize", SUCCESS); }
int hipGetLastError(void) { return finish("hipGetLastError", SUCCESS); }
int hipPointerGetAttributes(void *attributes, const void *pointer) {
  (void)attributes;
  return finish("hipPointerGetAttributes", pointer ? INVALID_VALUE : INVALID_VALUE);  // host memory, unknown to HIP
}
const char *hipGetErrorName(int code) {
  finish("hipGetErrorName", SUCCESS);
  switch (code) {
    case 0: return "hipSuccess";
    case 1: return "hipErrorInvalidValue";
    case 200: return "hipErrorInvalidImage";
    case 209: return "hipErrorNoBinaryForGpu";
    case 303: return "hipErrorSharedObjectInitFailed";
    case 700: return "hipErrorIllegalAddress";
    case 900: return "hipErrorStreamCaptureUnsupported";
    default: return "hipErrorUnknown";
  }
}
const char *hipGetErrorString(int code) { return hipGetErrorName(code); }
