#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace samba::apps {

namespace {

constexpr double kBarInterval = 0.1;    // seconds between two drawings of the bar
constexpr double kLineInterval = 10.0;  // seconds between two plain lines
constexpr double kShortest = 0.05;      // seconds before a rate means anything
constexpr int kBarWidth = 24;

void write_error(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string format(const char* pattern, double a) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, a);
  return buffer;
}

// A line that is wider than the terminal would go on in the next one, which is not erased with it.
std::string fitting(const std::string& text) {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const std::size_t most = known ? size.ws_col - 1U : 79U;
  return text.substr(0, std::min(text.size(), most));
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 10.0) return format("%.1f s", seconds);
  const auto whole = static_cast<long>(seconds + 0.5);
  char buffer[64];
  if (whole < 60) {
    std::snprintf(buffer, sizeof buffer, "%ld s", whole);
  } else if (whole < 3600) {
    std::snprintf(buffer, sizeof buffer, "%ld min %02ld s", whole / 60, whole % 60);
  } else {
    std::snprintf(buffer, sizeof buffer, "%ld h %02ld min", whole / 3600, whole / 60 % 60);
  }
  return buffer;
}

Progress::Progress(const std::string& mode, std::string label, std::string unit, std::uint64_t first,
                   std::uint64_t total)
    : shown_(mode != "never"),
      bar_(::isatty(STDERR_FILENO) == 1),
      label_(std::move(label)),
      unit_(std::move(unit)),
      first_(first),
      total_(total),
      done_(first) {}

Progress::~Progress() { erase(); }

std::string Progress::line(std::uint64_t done, const std::string& note) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = elapsed > kShortest ? static_cast<double>(done - first_) / elapsed : 0.0;
  std::string text = label_ + " ";
  if (bar_ && total_ > 0) {
    const auto filled = static_cast<int>(static_cast<double>(done) / static_cast<double>(total_) * kBarWidth);
    text += "[" + std::string(static_cast<std::size_t>(std::clamp(filled, 0, kBarWidth)), '#') +
            std::string(static_cast<std::size_t>(std::clamp(kBarWidth - filled, 0, kBarWidth)), '.') + "] ";
  }
  text += std::to_string(done) + (total_ > 0 ? "/" + std::to_string(total_) : "") + " " + unit_;
  if (note_below_ && total_ > 0) {
    text += format("  %.0f %%", std::floor(static_cast<double>(done) / static_cast<double>(total_) * 100.0));
  } else if (!note.empty()) {
    text += "  " + note;
  }
  if (rate > 0.0) {
    text += format(rate >= 10.0 ? "  %.0f " : "  %.2f ", rate) + unit_ + "/s";
    if (total_ > done) text += "  " + duration_text(static_cast<double>(total_ - done) / rate) + " left";
  }
  return text;
}

void Progress::erase() {
  if (drawn_) write_error(note_below_ ? "\r\033[K\033[1A\033[K" : "\r\033[K");
  drawn_ = false;
}

void Progress::draw(std::uint64_t done, const std::string& note) {
  erase();
  write_error(fitting(line(done, note)) + (note_below_ ? "\n" + fitting("  " + note) : std::string()));
  drawn_ = true;
}

void Progress::update(std::uint64_t done, const std::string& note) {
  done_ = done;
  note_ = note;
  pending_ = true;
  if (!shown_) return;
  const Clock::time_point now = Clock::now();
  if (std::chrono::duration<double>(now - last_).count() < (bar_ ? kBarInterval : kLineInterval)) return;
  last_ = now;
  pending_ = false;
  if (bar_) {
    draw(done, note);
  } else {
    write_error(line(done, note) + "\n");
  }
}

void Progress::say(const std::string& text) {
  if (!shown_) return;
  erase();
  write_error(text + "\n");
}

void Progress::finish() {
  if (!shown_) return;
  erase();
  if (bar_ || pending_) write_error(line(done_, note_) + "\n" + (note_below_ ? "  " + note_ + "\n" : std::string()));
  pending_ = false;
}

}  // namespace samba::apps
