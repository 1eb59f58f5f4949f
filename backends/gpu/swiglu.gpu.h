// act = F(silu(F(gate))), gated = F(act * up) of one element.
#pragma once

#include "samba/backends/gpu/platform.h"

namespace samba::SAMBA_GPU {

SAMBA_DEVICE void swiglu(float gate, float up, float& act, float& gated) {
  const float value = samba::flush(elementary::silu(samba::flush(gate)));
  const float product = mul(value, up);
  act = value;
  gated = product;
}

}  // namespace samba::SAMBA_GPU
