// A launch graph of CUDA or HIP: kernels one behind the other.
#pragma once

#include <memory>
#include <vector>

#include "samba/backends/gpu/launch_list.h"

namespace samba::SAMBA_GPU {

class DeviceGraph {
 public:
  using Stream = SAMBA_RUNTIME(Stream_t);

  // Null when the driver refuses one of the calls.
  static std::unique_ptr<DeviceGraph> make(const LaunchList& list, Stream stream) {
    std::unique_ptr<DeviceGraph> graph(new DeviceGraph(stream));
    if (!succeeds(SAMBA_RUNTIME(GraphCreate)(&graph->graph_, 0))) return nullptr;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Node* before = i == 0 ? nullptr : &graph->nodes_.back();
      const Parameters parameters = parameters_of(list, i);
      Node node{};
      if (!succeeds(SAMBA_RUNTIME(GraphAddKernelNode)(&node, graph->graph_, before, i == 0 ? 0 : 1, &parameters))) {
        return nullptr;
      }
      graph->nodes_.push_back(node);
    }
    // Of all forms of this call the one that CUDA 11 to 13 and HIP share.
    if (!succeeds(SAMBA_RUNTIME(GraphInstantiateWithFlags)(&graph->instance_, graph->graph_, 0))) return nullptr;
    return graph;
  }
  ~DeviceGraph() {
    if (instance_ != nullptr) (void)SAMBA_RUNTIME(GraphExecDestroy)(instance_);
    if (graph_ != nullptr) (void)SAMBA_RUNTIME(GraphDestroy)(graph_);
  }
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  bool change(const LaunchList& list, std::size_t i) {
    const Parameters parameters = parameters_of(list, i);
    return succeeds(SAMBA_RUNTIME(GraphExecKernelNodeSetParams)(instance_, nodes_[i], &parameters));
  }
  bool launch() { return succeeds(SAMBA_RUNTIME(GraphLaunch)(instance_, stream_)); }

 private:
  using Node = SAMBA_RUNTIME(GraphNode_t);
  using Parameters = SAMBA_RUNTIME(KernelNodeParams);

  explicit DeviceGraph(Stream stream) : stream_(stream) {}

  static bool succeeds(SAMBA_RUNTIME(Error_t) status) {
    if (status == SAMBA_RUNTIME(Success)) return true;
    (void)SAMBA_RUNTIME(GetLastError)();  // a refused graph is not an error of the next launch
    return false;
  }
  // The driver copies the arguments in the call that is given these.
  static Parameters parameters_of(const LaunchList& list, std::size_t i) {
    const LaunchExtent& extent = list.extent(i);
    Parameters parameters{};
    parameters.func = const_cast<void*>(list.kernel(i));
    parameters.gridDim = dim3(extent.x, extent.y, extent.z);
    parameters.blockDim = dim3(extent.threads);
    parameters.kernelParams = list.arguments(i).data();
    return parameters;
  }

  Stream stream_;
  SAMBA_RUNTIME(Graph_t) graph_ = nullptr;
  SAMBA_RUNTIME(GraphExec_t) instance_ = nullptr;
  std::vector<Node> nodes_;
};

}  // namespace samba::SAMBA_GPU
