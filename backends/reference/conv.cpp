#include "samba/backends/reference/conv.h"

#include "samba/backends/reference/clones.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"

namespace samba::reference {

namespace {

SAMBA_FMA_CLONES void conv_row(const ConvCall& call, Index b, Index l, float* conv, float* activated) {
  for (Index d = 0; d < call.channels; ++d) {
    float sum = flush(call.bias[d]);
    for (Index k = 0; k < kConvTaps; ++k) {
      const Index p = l - 3 + k;
      float v = 0.0F;
      if (p >= 0) {
        v = call.x[(b * call.tokens + p) * call.x_stride + d];
      } else if (call.window != nullptr) {
        v = call.window[(b * call.channels + d) * kConvTaps + 4 + p];
      }
      sum = mad(call.weight[d * kConvTaps + k], v, sum);
    }
    if (conv != nullptr) conv[d] = sum;
    activated[d] = flush(elementary::silu(sum));
  }
}

}  // namespace

void ConvReference::conv_forward(const ConvCall& call, float* conv, float* activated) {
  for (Index b = 0; b < call.batch; ++b) {
    for (Index l = 0; l < call.tokens; ++l) {
      const Index at = (b * call.tokens + l) * call.channels;
      conv_row(call, b, l, conv == nullptr ? nullptr : conv + at, activated + at);
    }
  }
}

void ConvReference::update_window(const ConvCall& call, float* window) {
  for (Index b = 0; b < call.batch; ++b) {
    for (Index d = 0; d < call.channels; ++d) {
      float* slots = window + (b * call.channels + d) * kConvTaps;
      // Ascending: slot j reads slot 4 + p = j + tokens of the old window, which is not yet overwritten.
      for (Index j = 0; j < kConvTaps; ++j) {
        const Index p = call.tokens - kConvTaps + j;
        slots[j] = p >= 0 ? call.x[(b * call.tokens + p) * call.x_stride + d] : slots[kConvTaps + p];
      }
    }
  }
}

}  // namespace samba::reference
