// The loss of a run as a picture (SVG).
#pragma once

#include <string>
#include <vector>

#include "samba/core/files.h"

namespace samba {

struct LossCurve {
  std::vector<double> step, loss;            // training
  std::vector<double> eval_step, eval_loss;  // held-back text
};

// From a metrics.jsonl; lines that are not complete are skipped.
LossCurve read_loss_curve(const Path& metrics);

std::string loss_svg(const LossCurve& curve);

}  // namespace samba
