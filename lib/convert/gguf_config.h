// The configuration of a stack in the metadata of a GGUF file.
#pragma once

#include "samba/convert/gguf_names.h"
#include "samba/formats/gguf_file.h"
#include "samba/model/stack_config.h"

namespace samba {

struct GgufModelConfig {
  GgufArchitecture architecture = GgufArchitecture::llama;
  StackConfig config;
};

// Every key of the architecture is either understood or refused: Error(value, unsupported) with the key, or with the
// tensor where the presence of one decides.
GgufModelConfig read_gguf_config(const GgufFile& file);

}  // namespace samba
