// Text files as training data: the tokens are their bytes, or those of a tokenizer; the tail of the text is held out.
#pragma once

#include <memory>

#include "samba/train/training_data.h"

namespace samba {

std::unique_ptr<TrainingData> open_text_data(const TrainConfig& config, const ModelOpener& opener);

}  // namespace samba
