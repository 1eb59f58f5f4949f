// Folders of token shards as training data: mapped, never read whole.
#pragma once

#include <memory>

#include "samba/train/training_data.h"

namespace samba {

std::unique_ptr<TrainingData> open_shard_data(const TrainConfig& config, const ModelOpener& opener);

}  // namespace samba
