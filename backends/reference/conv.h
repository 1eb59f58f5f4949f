// ConvKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/conv.h"

namespace samba::reference {

class ConvReference final : public ConvKernels {
 public:
  void conv_forward(const ConvCall& call, float* conv, float* activated) override;
  void update_window(const ConvCall& call, float* window) override;
};

}  // namespace samba::reference
