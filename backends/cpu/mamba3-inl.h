// Sizes of the Mamba-3 kernels beside the tiles they are made of, once per target.
#if defined(SAMBA_CPU_MAMBA3_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_MAMBA3_INL_H_
#undef SAMBA_CPU_MAMBA3_INL_H_
#else
#define SAMBA_CPU_MAMBA3_INL_H_
#endif

#include "samba/backends/cpu/tiles-inl.h"
#include "samba/kernels/mamba3.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::mamba3_lanes {

using namespace tiles;

inline constexpr Index P = mamba3::kHeadDim;
inline constexpr Index N = mamba3::kStateSize;
inline constexpr Index R = mamba3::kAngles;
inline constexpr Index Q = mamba3::kChunk;

}  // namespace samba::cpu::HWY_NAMESPACE::mamba3_lanes
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
