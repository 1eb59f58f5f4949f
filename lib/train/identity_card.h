// The identity card of a run: one number a step that stands for every number before it.
//
//   card(0) = SHA-256 of "samba.card.v1 " and the digest of the initial parameters
//   card(t) = SHA-256 of card(t-1), a space and the bits of step t: "t loss lr norm", norm "none" without clipping
//
// in hexadecimal digits, cut to 32. Two runs with the same card after a step had the same losses, learning rates and
// gradient norms in all steps up to it. The card stands in every line of metrics.jsonl and beside every checkpoint, so
// that a resumed run goes on with it.
#pragma once

#include <string>

#include "samba/train/run_folder.h"

namespace samba {

std::string first_card(const std::string& parameters_sha256);
std::string next_card(const std::string& card, const StepMetrics& metrics);

}  // namespace samba
