#include "samba/backends/reference/norm.h"

#include "samba/core/error.h"

namespace samba::reference {

void NormReference::rms_norm_forward(Index /*rows*/, Index /*width*/, float /*eps*/, bool /*offset*/, const float* /*x*/, const float* /*weight*/, float* /*y*/, float* /*sumsq*/, float* /*rstd*/) { throw Error(ErrorKind::internal, "rms_norm_forward: to be written"); }
void NormReference::rms_norm_backward(Index /*rows*/, Index /*width*/, float /*eps*/, const float* /*x*/, const float* /*weight*/, const float* /*dy*/, float* /*dx*/, float* /*d_weight*/, float* /*dot*/) { throw Error(ErrorKind::internal, "rms_norm_backward: to be written"); }
void NormReference::layer_norm_block(Index /*rows*/, Index /*width*/, float /*eps*/, const float* /*x*/, const float* /*weight*/, const float* /*bias*/, float* /*y*/, float* /*sumsq*/) { throw Error(ErrorKind::internal, "layer_norm_block: to be written"); }
void NormReference::layer_norm_forward(Index /*rows*/, Index /*width*/, float /*eps*/, const float* /*x*/, const float* /*weight*/, const float* /*bias*/, float* /*y*/) { throw Error(ErrorKind::internal, "layer_norm_forward: to be written"); }
void NormReference::layer_norm_backward(Index /*rows*/, Index /*width*/, float /*eps*/, const float* /*x*/, const float* /*weight*/, const float* /*dy*/, float* /*dx*/, float* /*d_weight*/, float* /*d_bias*/) { throw Error(ErrorKind::internal, "layer_norm_backward: to be written"); }
void NormReference::mamba_norm_forward(Index /*rows*/, Index /*width*/, float /*eps*/, const float* /*x*/, const float* /*weight*/, float* /*y*/, float* /*sumsq*/) { throw Error(ErrorKind::internal, "mamba_norm_forward: to be written"); }
void NormReference::mamba_norm_backward(Index /*rows*/, Index /*width*/, float /*eps*/, const float* /*x*/, const float* /*weight*/, const float* /*sumsq*/, const float* /*dy*/, const float* /*residual_gradient*/, float* /*dx*/, float* /*d_weight*/) { throw Error(ErrorKind::internal, "mamba_norm_backward: to be written"); }

}  // namespace samba::reference
