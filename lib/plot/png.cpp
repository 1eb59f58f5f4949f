#include "samba/plot/png.h"

#include <cairo.h>
#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <new>
#include <numbers>
#include <string_view>

#include "samba/core/error.h"

namespace samba::plot {

namespace {

constexpr const char* kLibrary = "libcairo.so.2";

// What is used of cairo, found by name.
class Cairo {
 public:
  static const Cairo& get() {
    static const Cairo cairo;
    return cairo;
  }

#define SAMBA_CAIRO(name) decltype(&::cairo_##name) name = find<decltype(&::cairo_##name)>("cairo_" #name)
 private:
  void* library_ = open();

 public:
  SAMBA_CAIRO(image_surface_create);
  SAMBA_CAIRO(surface_destroy);
  SAMBA_CAIRO(surface_status);
  SAMBA_CAIRO(surface_write_to_png_stream);
  SAMBA_CAIRO(create);
  SAMBA_CAIRO(destroy);
  SAMBA_CAIRO(status);
  SAMBA_CAIRO(status_to_string);
  SAMBA_CAIRO(scale);
  SAMBA_CAIRO(save);
  SAMBA_CAIRO(restore);
  SAMBA_CAIRO(translate);
  SAMBA_CAIRO(rotate);
  SAMBA_CAIRO(set_source_rgba);
  SAMBA_CAIRO(paint);
  SAMBA_CAIRO(rectangle);
  SAMBA_CAIRO(new_path);
  SAMBA_CAIRO(arc);
  SAMBA_CAIRO(fill);
  SAMBA_CAIRO(move_to);
  SAMBA_CAIRO(line_to);
  SAMBA_CAIRO(stroke);
  SAMBA_CAIRO(set_line_width);
  SAMBA_CAIRO(set_line_join);
  SAMBA_CAIRO(set_dash);
  SAMBA_CAIRO(select_font_face);
  SAMBA_CAIRO(set_font_size);
  SAMBA_CAIRO(set_font_options);
  SAMBA_CAIRO(text_extents);
  SAMBA_CAIRO(show_text);
  SAMBA_CAIRO(font_options_create);
  SAMBA_CAIRO(font_options_destroy);
  SAMBA_CAIRO(font_options_set_antialias);
  SAMBA_CAIRO(font_options_set_hint_style);
  SAMBA_CAIRO(font_options_set_hint_metrics);
#undef SAMBA_CAIRO

 private:
  static void* open() {
    void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = ::dlerror();
      if (reason != nullptr && std::string_view(reason).find("memory") != std::string_view::npos)
        throw std::bad_alloc();
      refuse_unsupported(std::string("a PNG picture needs ") + kLibrary +
                         " (Debian: apt install libcairo2); SVG and HTML need nothing");
    }
    return library;
  }

  template <class Function>
  Function find(const char* name) const {
    void* found = ::dlsym(library_, name);
    if (found == nullptr) refuse_unsupported(std::string(kLibrary) + " has no " + name + "; SVG and HTML need nothing");
    return reinterpret_cast<Function>(found);
  }
};

class Painter {
 public:
  Painter(const Cairo& cairo, cairo_t* context) : cairo_(cairo), context_(context) {
    std::unique_ptr<cairo_font_options_t, decltype(cairo.font_options_destroy)> options(cairo.font_options_create(),
                                                                                        cairo.font_options_destroy);
    // Whatever the screen of a user is set to.
    cairo.font_options_set_antialias(options.get(), CAIRO_ANTIALIAS_GRAY);
    cairo.font_options_set_hint_style(options.get(), CAIRO_HINT_STYLE_NONE);
    cairo.font_options_set_hint_metrics(options.get(), CAIRO_HINT_METRICS_OFF);
    cairo.set_font_options(context, options.get());
    cairo.set_line_join(context, CAIRO_LINE_JOIN_ROUND);
  }

  void operator()(const Rectangle& shape) const {
    use(shape.paint);
    cairo_.rectangle(context_, shape.corner.x, shape.corner.y, shape.width, shape.height);
    cairo_.fill(context_);
  }

  void operator()(const Polyline& shape) const {
    if (shape.points.empty()) return;
    use(shape.paint);
    constexpr double kDashes[] = {5.0, 4.0};
    cairo_.set_dash(context_, kDashes, shape.dashed ? 2 : 0, 0.0);
    cairo_.set_line_width(context_, shape.width);
    cairo_.move_to(context_, shape.points[0].x, shape.points[0].y);
    for (const Point& point : shape.points) cairo_.line_to(context_, point.x, point.y);
    cairo_.stroke(context_);
  }

  void operator()(const Circle& shape) const {
    use(shape.paint);
    cairo_.new_path(context_);
    cairo_.arc(context_, shape.center.x, shape.center.y, shape.radius, 0.0, 2.0 * std::numbers::pi);
    cairo_.fill(context_);
  }

  void operator()(const Text& shape) const {
    use(shape.paint);
    cairo_.select_font_face(context_, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                            shape.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_.set_font_size(context_, shape.size);
    const std::string text = shortened(shape.text, kMostCharacters);
    cairo_text_extents_t extents{};
    cairo_.text_extents(context_, text.c_str(), &extents);
    const double before = shape.anchor == Anchor::start    ? 0.0
                          : shape.anchor == Anchor::middle ? extents.x_advance / 2.0
                                                           : extents.x_advance;
    cairo_.save(context_);
    cairo_.translate(context_, shape.at.x, shape.at.y);
    if (shape.upright) cairo_.rotate(context_, -std::numbers::pi / 2.0);
    cairo_.move_to(context_, -before, 0.0);
    cairo_.show_text(context_, text.c_str());
    cairo_.restore(context_);
  }

  void use(const Paint& paint) const {
    const Color color = color_of(paint);
    cairo_.set_source_rgba(context_, color.red / 255.0, color.green / 255.0, color.blue / 255.0, paint.opacity);
  }

 private:
  static constexpr std::size_t kMostCharacters = 1000;
  const Cairo& cairo_;
  cairo_t* context_;
};

cairo_status_t append(void* closure, const unsigned char* data, unsigned length) {
  try {
    static_cast<std::string*>(closure)->append(reinterpret_cast<const char*>(data), length);
  } catch (const std::exception&) {
    return CAIRO_STATUS_NO_MEMORY;
  }
  return CAIRO_STATUS_SUCCESS;
}

}  // namespace

std::string png_file(const Drawing& drawing, double scale) {
  const Cairo& cairo = Cairo::get();
  const auto checked = [&](cairo_status_t status) {
    if (status == CAIRO_STATUS_SUCCESS) return;
    throw Error(ErrorKind::resource, std::string("cairo cannot draw the picture: ") + cairo.status_to_string(status));
  };
  const std::unique_ptr<cairo_surface_t, decltype(cairo.surface_destroy)> surface(
      cairo.image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(drawing.width * scale),
                                 static_cast<int>(drawing.height * scale)),
      cairo.surface_destroy);
  checked(cairo.surface_status(surface.get()));
  const std::unique_ptr<cairo_t, decltype(cairo.destroy)> context(cairo.create(surface.get()), cairo.destroy);
  checked(cairo.status(context.get()));
  cairo.scale(context.get(), scale, scale);
  const Painter painter(cairo, context.get());
  painter.use({Ink::background});
  cairo.paint(context.get());
  for (const Shape& shape : drawing.shapes) std::visit(painter, shape);
  checked(cairo.status(context.get()));
  std::string bytes;
  checked(cairo.surface_write_to_png_stream(surface.get(), append, &bytes));
  return bytes;
}

}  // namespace samba::plot
