// ConvKernels of the cpu executor: channels in lanes, threads over (batch row, channels).
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/conv.h"

namespace samba::cpu {

class ConvCpu final : public ConvKernels {
 public:
  explicit ConvCpu(Context& context) : context_(context) {}

  void conv_forward(const ConvCall& call, float* conv, float* activated) override;
  void update_window(const ConvCall& call, float* window) override;

 private:
  Context& context_;
};

}  // namespace samba::cpu
