#include "samba/plot/drawing.h"

#include <cstdio>

#include "samba/text/utf8.h"

namespace samba::plot {

namespace {

constexpr Color kLightSeries[kSeriesColors] = {{37, 99, 201}, {196, 73, 0},   {36, 122, 54}, {142, 45, 168},
                                               {179, 30, 84}, {11, 114, 133}, {122, 92, 0},  {73, 80, 87}};
constexpr Color kDarkSeries[kSeriesColors] = {{116, 169, 255}, {255, 157, 92}, {105, 219, 124}, {218, 155, 240},
                                              {255, 143, 179}, {77, 212, 232}, {230, 194, 90},  {206, 212, 218}};

// The characters of a text, each as its bytes.
std::vector<std::string> characters_of(std::string_view text) {
  std::vector<std::string> characters;
  while (!text.empty()) {
    const Utf8Part part = next_utf8_part(text);
    const bool control = static_cast<unsigned char>(text.front()) < 0x20 || text.front() == 0x7F;
    characters.emplace_back(part.valid && part.whole && !control ? text.substr(0, part.length) : "\xEF\xBF\xBD");
    text.remove_prefix(part.length);
  }
  return characters;
}

}  // namespace

Color color_of(const Paint& paint, bool dark) {
  switch (paint.ink) {
    case Ink::background:
      return dark ? Color{22, 25, 29} : Color{255, 255, 255};
    case Ink::text:
      return dark ? Color{230, 233, 237} : Color{28, 32, 36};
    case Ink::muted:
      return dark ? Color{160, 168, 178} : Color{90, 97, 105};
    case Ink::grid:
      return dark ? Color{52, 58, 66} : Color{224, 227, 231};
    case Ink::series:
      break;
  }
  return (dark ? kDarkSeries : kLightSeries)[paint.series % kSeriesColors];
}

std::string hex_text(Color color) {
  char text[16];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", color.red & 255, color.green & 255, color.blue & 255);
  return text;
}

double text_width(const std::string& text, double size) {
  double width = 0.0;
  for (const std::string& character : characters_of(text)) {
    const char c = character.front();
    const bool narrow = c == ' ' || c == '.' || c == ',' || c == ':' || c == 'i' || c == 'l' || c == '/' || c == '-';
    const bool wide = c == 'm' || c == 'w' || (c >= 'A' && c <= 'Z') || character.size() > 2;
    width += size * (narrow ? 0.34 : wide ? 0.76 : 0.6);
  }
  return width;
}

std::string shortened(const std::string& text, std::size_t most) {
  const std::vector<std::string> characters = characters_of(text);
  std::string result;
  if (characters.size() <= most) {
    for (const std::string& character : characters) result += character;
    return result;
  }
  const std::size_t before = (most - 1) / 2, behind = most - 1 - before;
  for (std::size_t i = 0; i < before; ++i) result += characters[i];
  result += "\xE2\x80\xA6";  // an ellipsis
  for (std::size_t i = characters.size() - behind; i < characters.size(); ++i) result += characters[i];
  return result;
}

}  // namespace samba::plot
