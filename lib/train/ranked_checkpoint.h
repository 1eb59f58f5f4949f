// The checkpoint of a trainer among several ranks: written by all together, the bytes of one process.
#pragma once

#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/train/trainer.h"

namespace samba {

// Collective; see save_checkpoint.
std::string save_ranked_checkpoint(const SambaTrainer& trainer, const Path& path);

// What moments a trainer at `place` keeps: the whole buffer, or this rank's share.
std::vector<ParameterRange> moment_ranges(const Registry& registry, const RankPlace& place);
Index element_count(const std::vector<ParameterRange>& ranges);

}  // namespace samba
