// What lib/train asks for when a run begins from a model: every form that model_source.h opens.
#pragma once

#include "samba/train/initial_model.h"

namespace samba {

ModelOpener model_opener();

}  // namespace samba
