// Drawings as SVG. The bytes follow from the drawing alone.
#pragma once

#include <string>

#include "samba/plot/drawing.h"

namespace samba::plot {

// A file of its own, with colors of the light palette on a white ground.
std::string svg_file(const Drawing& drawing);

// An element for a page whose style sheet has the colors: classes i-text, i-muted, i-grid, s0 to s7 on what is drawn.
// `id`: of the element; the names of its title and description begin with it.
std::string svg_element(const Drawing& drawing, const std::string& id);

// Text inside XML and HTML, also within double quotes.
std::string escaped(const std::string& text);

}  // namespace samba::plot
