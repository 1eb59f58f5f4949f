// The functions of the HIP runtime that samba uses, each found in libamdhip64 when it is first called: samba starts on
// machines without it. What the compiler registers at start (fat binaries, kernels) is kept and handed on when the
// library is loaded. Without the library every function returns hipErrorNoDevice.
#include <dlfcn.h>
#include <hip/hip_runtime.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

// Of the compiler's own calls; no header declares them.
extern "C" {
void** __hipRegisterFatBinary(const void* data);
void __hipUnregisterFatBinary(void** modules);
void __hipRegisterFunction(void** modules, const void* host_function, char* device_function, const char* device_name,
                           unsigned thread_limit, void* tid, void* bid, dim3* block_dim, dim3* grid_dim,
                           int* warp_size);
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, hipStream_t stream);
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, hipStream_t* stream);
}

#define SAMBA_TEXT_OF(...) #__VA_ARGS__
#define SAMBA_TEXT(...) SAMBA_TEXT_OF(__VA_ARGS__)  // a name may be a macro for its newest form

namespace {

struct Kernel {
  const void* host_function;
  char* device_function;
  const char* device_name;
  unsigned thread_limit;
};

struct FatBinary {
  const void* data = nullptr;
  std::vector<Kernel> kernels;
  void** modules = nullptr;  // the library's, once it is loaded
};

// A deque: the address of an element is the handle of its binary. Never destroyed: binaries are unregistered late.
std::deque<FatBinary>& binaries() {
  static auto* all = new std::deque<FatBinary>;
  return *all;
}

void* open_library() {
  for (const char* name : {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class F>
F* find_in(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
}

void hand_over(void* library, FatBinary& binary) {
  const auto add_binary = find_in<decltype(__hipRegisterFatBinary)>(library, "__hipRegisterFatBinary");
  const auto add_kernel = find_in<decltype(__hipRegisterFunction)>(library, "__hipRegisterFunction");
  if (add_binary == nullptr || add_kernel == nullptr) return;
  binary.modules = add_binary(binary.data);
  for (const Kernel& kernel : binary.kernels) {
    add_kernel(binary.modules, kernel.host_function, kernel.device_function, kernel.device_name, kernel.thread_limit,
               nullptr, nullptr, nullptr, nullptr, nullptr);
  }
}

// Whether this program has code for the device it would use. The runtime of ROCm 5 ends a process that hands over
// binaries without; not handed over, its first kernel is refused.
bool has_code_for_device(void* library) {
  const auto read_count = find_in<decltype(hipGetDeviceCount)>(library, "hipGetDeviceCount");
  const auto read_properties = find_in<decltype(hipGetDeviceProperties)>(library, SAMBA_TEXT(hipGetDeviceProperties));
  int devices = 0;
  hipDeviceProp_t properties{};
  if (read_count == nullptr || read_properties == nullptr || read_count(&devices) != hipSuccess || devices == 0 ||
      read_properties(&properties, 0) != hipSuccess) {
    return true;  // whoever asks for the device is told
  }
  const std::string_view name = properties.gcnArchName;  // "gfx90a:sramecc+:xnack-"
  const std::string wanted = "," + std::string(name.substr(0, name.find(':'))) + ",";
  return std::string_view("," SAMBA_TEXT(SAMBA_HIP_ARCHITECTURES) ",").find(wanted) != std::string_view::npos;
}

void* library() {
  static void* const loaded = [] {
    void* opened = open_library();
    if (opened != nullptr && has_code_for_device(opened)) {
      for (FatBinary& binary : binaries()) hand_over(opened, binary);
    }
    return opened;
  }();
  return loaded;
}

template <class F>
F* find(const char* name) {
  return find_in<F>(library(), name);
}

}  // namespace

// Calls the library's function of this name, or returns that there is no device.
#define SAMBA_FORWARD(name, ...)                                        \
  static auto* const function = find<decltype(name)>(SAMBA_TEXT(name)); \
  return function == nullptr ? hipErrorNoDevice : function(__VA_ARGS__)

extern "C" {

void** __hipRegisterFatBinary(const void* data) {
  binaries().push_back({data, {}, nullptr});
  return reinterpret_cast<void**>(&binaries().back());
}

void __hipUnregisterFatBinary(void**) {}  // the process ends

void __hipRegisterFunction(void** modules, const void* host_function, char* device_function, const char* device_name,
                           unsigned thread_limit, void*, void*, dim3*, dim3*, int*) {
  reinterpret_cast<FatBinary*>(modules)->kernels.push_back({host_function, device_function, device_name, thread_limit});
}

hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, hipStream_t stream) {
  SAMBA_FORWARD(__hipPushCallConfiguration, grid, block, shared, stream);
}
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, hipStream_t* stream) {
  SAMBA_FORWARD(__hipPopCallConfiguration, grid, block, shared, stream);
}
hipError_t hipLaunchKernel(const void* function_address, dim3 grid, dim3 block, void** arguments, size_t shared,
                           hipStream_t stream) {
  SAMBA_FORWARD(hipLaunchKernel, function_address, grid, block, arguments, shared, stream);
}
hipError_t hipMalloc(void** pointer, size_t bytes) {  // there is a template of the same name
  static auto* const function = find<hipError_t(void**, size_t)>("hipMalloc");
  return function == nullptr ? hipErrorNoDevice : function(pointer, bytes);
}
hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags) {  // and so is of this
  static auto* const function = find<hipError_t(void**, size_t, unsigned)>("hipHostMalloc");
  return function == nullptr ? hipErrorNoDevice : function(pointer, bytes, flags);
}
hipError_t hipHostFree(void* pointer) { SAMBA_FORWARD(hipHostFree, pointer); }
hipError_t hipFree(void* pointer) { SAMBA_FORWARD(hipFree, pointer); }
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  SAMBA_FORWARD(hipMemcpyAsync, to, from, bytes, kind, stream);
}
hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
  SAMBA_FORWARD(hipMemsetAsync, to, value, bytes, stream);
}
hipError_t hipStreamSynchronize(hipStream_t stream) { SAMBA_FORWARD(hipStreamSynchronize, stream); }
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  SAMBA_FORWARD(hipStreamCreateWithFlags, stream, flags);
}
hipError_t hipStreamDestroy(hipStream_t stream) { SAMBA_FORWARD(hipStreamDestroy, stream); }
hipError_t hipGetDeviceCount(int* count) { SAMBA_FORWARD(hipGetDeviceCount, count); }
hipError_t hipSetDevice(int device) { SAMBA_FORWARD(hipSetDevice, device); }
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  SAMBA_FORWARD(hipGetDeviceProperties, properties, device);
}
hipError_t hipGraphCreate(hipGraph_t* graph, unsigned flags) { SAMBA_FORWARD(hipGraphCreate, graph, flags); }
hipError_t hipGraphDestroy(hipGraph_t graph) { SAMBA_FORWARD(hipGraphDestroy, graph); }
hipError_t hipGraphAddKernelNode(hipGraphNode_t* node, hipGraph_t graph, const hipGraphNode_t* before, size_t count,
                                 const hipKernelNodeParams* parameters) {
  SAMBA_FORWARD(hipGraphAddKernelNode, node, graph, before, count, parameters);
}
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* instance, hipGraph_t graph, unsigned long long flags) {
  SAMBA_FORWARD(hipGraphInstantiateWithFlags, instance, graph, flags);
}
hipError_t hipGraphExecKernelNodeSetParams(hipGraphExec_t instance, hipGraphNode_t node,
                                           const hipKernelNodeParams* parameters) {
  SAMBA_FORWARD(hipGraphExecKernelNodeSetParams, instance, node, parameters);
}
hipError_t hipGraphLaunch(hipGraphExec_t instance, hipStream_t stream) {
  SAMBA_FORWARD(hipGraphLaunch, instance, stream);
}
hipError_t hipGraphExecDestroy(hipGraphExec_t instance) { SAMBA_FORWARD(hipGraphExecDestroy, instance); }
hipError_t hipGetLastError() { SAMBA_FORWARD(hipGetLastError); }
const char* hipGetErrorString(hipError_t error) {
  static auto* const function = find<decltype(hipGetErrorString)>("hipGetErrorString");
  return function == nullptr ? "the HIP runtime (libamdhip64) is not installed" : function(error);
}

}  // extern "C"
