// A benchmark's result as text, JSON and a picture.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "samba/bench/bench.h"

namespace samba::bench {

// The machine and its limits in a few lines.
std::string machine_text(const Machine& machine);
std::string table_header();
std::string table_row(const Row& row);
std::string skipped_text(const std::vector<SkippedRow>& skipped);

// {"machine": {...}, "rows": [{"name", "achieved", "limit", "ratio", "unit", ...}], "skipped": [...]}
nlohmann::ordered_json report_json(const BenchReport& report);

// A roofline (SVG): achieved GFLOP/s of each row against its operations a byte of memory, below the roofs of FMA peak
// and read bandwidth of each number of threads. Both axes are logarithmic.
std::string roofline_svg(const BenchReport& report);

}  // namespace samba::bench
