mod choice;
mod copies;
mod desk;
mod model;
mod one_header;
mod resume;
