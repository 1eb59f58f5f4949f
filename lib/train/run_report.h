// Runs as one HTML page that needs nothing else: no network, no file beside it.
#pragma once

#include <span>
#include <string>

#include "samba/train/run_charts.h"
#include "samba/train/run_record.h"

namespace samba {

// Curves with the values under the pointer, a table of the runs (configuration, digests, last figures), their samples
// and configurations. `options`: what is shown first; the page can change it. The bytes follow from the runs alone.
std::string run_report_html(std::span<const RunRecord> runs, const RunChartOptions& options);

// Its style sheet and script (run_report_page.cpp).
extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace samba
