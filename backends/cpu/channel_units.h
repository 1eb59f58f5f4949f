// How threads share channels: pieces of one batch row's channels, a multiple of every target's lanes.
#pragma once

#include <algorithm>

#include "samba/backends/cpu/context.h"

namespace samba::cpu {

inline constexpr Index kChannelUnit = 16;

// Calls body(b, first, end) for parts of the channels of each batch row. `grain`: channel-tokens a thread should have
// to be worth its start.
template <class Body>
void over_channel_units(Context& context, Index batch, Index channels, Index tokens, Index grain, Body&& body) {
  const Index blocks = (channels + kChannelUnit - 1) / kChannelUnit;
  const Index units = std::max<Index>(1, grain / (kChannelUnit * tokens));
  context.parallel(batch * blocks, units, [&](Index first, Index end, int) {
    while (first < end) {
      const Index b = first / blocks;
      const Index block = first % blocks;
      const Index count = std::min(end - first, blocks - block);
      body(b, block * kChannelUnit, std::min(channels, (block + count) * kChannelUnit));
      first += count;
    }
  });
}

}  // namespace samba::cpu
