mod choice;
mod copies;
mod model;
mod one_header;
mod resume;
mod sandbox;
