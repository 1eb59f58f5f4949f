// A sequence and its decode state as a file (docs/formats/state.md): saved in one process, continued in another with
// the same bits.
#pragma once

#include <string>

#include "samba/core/files.h"
#include "samba/generate/sequence.h"
#include "samba/model/samba_stack.h"

namespace samba {

// Atomically.
void save_sequence(SambaStack& stack, const Sequence& sequence, const Path& path);

// Refused: a damaged or foreign file (Error(corrupt)); one of another model, profile or numeric mode (Error(value),
// with both).
Sequence load_sequence(SambaStack& stack, const Path& path);

// SHA-256 (hex) of the configuration's canonical text.
std::string config_digest(const StackConfig& config);

}  // namespace samba
